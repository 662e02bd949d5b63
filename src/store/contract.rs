pub async fn contract() {}
