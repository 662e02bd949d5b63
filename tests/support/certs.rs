//! Certificates of the test's own.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use tempfile::TempDir;

/// An authority, and what it has signed.
pub(crate) struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate.
    pub(crate) pem: String,
}

/// A certificate, and its private key.
pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let authority = Self {
            folder: tempfile::tempdir().unwrap(),
            issuer: Issuer::new(params, key),
            pem,
        };
        fs::write(authority.path("ca.pem"), &authority.pem).unwrap();
        authority
    }

    /// A certificate for `127.0.0.1`, of a server or of a client.
    pub(crate) fn sign(&self, usage: ExtendedKeyUsagePurpose) -> Signed {
        self.sign_for("127.0.0.1", &[usage])
    }

    fn sign_for(&self, host: &str, usages: &[ExtendedKeyUsagePurpose]) -> Signed {
        let mut params = CertificateParams::new([host.to_owned()]).unwrap();
        params.extended_key_usages = usages.to_vec();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Signed {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }

    /// The arguments with which a server listens for TLS as `host`, and checks clients or not.
    pub(crate) fn server_arguments(&self, host: &str, checks_clients: bool) -> Vec<String> {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        // Servers are clients of each other.
        let signed = self.sign_for(host, &[ServerAuth, ClientAuth]);
        fs::write(self.path("server.pem"), signed.certificate).unwrap();
        fs::write(self.path("server.key"), signed.key).unwrap();
        let path = |name| self.path(name).to_str().unwrap().to_owned();
        vec![
            "--tls-cert-file".into(),
            path("server.pem"),
            "--tls-key-file".into(),
            path("server.key"),
            "--tls-ca-cert-file".into(),
            path("ca.pem"),
            "--tls-auth-clients".into(),
            if checks_clients { "yes" } else { "no" }.into(),
        ]
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new(self.folder.path()).join(name)
    }
}
