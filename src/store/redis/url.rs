//! What a URL says.

use redis::{ConnectionAddr, IntoConnectionInfo};

use super::{access::Login, error::RedisStoreError, server::malformed};

/// A URL, taken apart.
pub(super) struct Url {
    pub(super) place: Place,
    pub(super) login: Login,
    pub(super) db: i64,
    #[cfg_attr(
        not(feature = "tls"),
        expect(dead_code, reason = "always false: other URLs are refused")
    )]
    pub(super) tls: bool,
}

/// Where the servers are. Addresses are `host[:port]`.
pub(super) enum Place {
    /// The URL of one server, as the `redis` crate understands it.
    Server(String),
    #[cfg(feature = "cluster")]
    Cluster(Vec<String>),
    #[cfg(feature = "sentinel")]
    Sentinel {
        sentinels: Vec<String>,
        service: String,
    },
}

impl Url {
    pub(super) fn parse(url: &str) -> Result<Self, RedisStoreError> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let tls = scheme.starts_with("rediss") || scheme == "valkeys";
        if tls && !cfg!(feature = "tls") {
            return Err(needs("tls"));
        }
        match scheme {
            "redis+cluster" | "rediss+cluster" => Self::cluster(rest, tls),
            "redis+sentinel" | "rediss+sentinel" => Self::sentinel(rest, tls),
            _ => Self::server(url),
        }
    }

    fn server(url: &str) -> Result<Self, RedisStoreError> {
        let info = url
            .into_connection_info()
            .map_err(|error| malformed(&error))?;
        let tls = match info.addr() {
            ConnectionAddr::TcpTls { insecure: true, .. } => {
                return Err(RedisStoreError::misconfigured(
                    "the URL asks not to check the server's certificate, which is not supported: \
                     name the authority that signed it",
                ));
            }
            ConnectionAddr::TcpTls { .. } => true,
            _ => false,
        };
        let settings = info.redis_settings();
        Ok(Self {
            place: Place::Server(url.to_owned()),
            login: Login {
                username: settings.username().map(str::to_owned),
                password: settings.password().map(str::to_owned),
            },
            db: settings.db(),
            tls,
        })
    }

    #[cfg(feature = "cluster")]
    fn cluster(rest: &str, tls: bool) -> Result<Self, RedisStoreError> {
        let (hosts, path, url) = Self::many(rest, tls)?;
        if !matches!(path, "" | "0") {
            return Err(RedisStoreError::misconfigured(
                "a cluster has no databases but 0",
            ));
        }
        Ok(Self {
            place: Place::Cluster(hosts),
            ..url
        })
    }

    #[cfg(not(feature = "cluster"))]
    fn cluster(_: &str, _: bool) -> Result<Self, RedisStoreError> {
        Err(needs("cluster"))
    }

    #[cfg(feature = "sentinel")]
    fn sentinel(rest: &str, tls: bool) -> Result<Self, RedisStoreError> {
        let (sentinels, path, url) = Self::many(rest, tls)?;
        let (service, db) = path.split_once('/').unwrap_or((path, ""));
        let service = percent_encoding::percent_decode_str(service)
            .decode_utf8()
            .map_err(|_| not_understood())?;
        if service.is_empty() {
            return Err(RedisStoreError::misconfigured(
                "the URL does not name the service that the Sentinels watch",
            ));
        }
        let db = match db {
            "" => 0,
            db => db.parse().map_err(|_| not_understood())?,
        };
        Ok(Self {
            place: Place::Sentinel {
                sentinels,
                service: service.into_owned(),
            },
            db,
            ..url
        })
    }

    #[cfg(not(feature = "sentinel"))]
    fn sentinel(_: &str, _: bool) -> Result<Self, RedisStoreError> {
        Err(needs("sentinel"))
    }

    /// `[user][:password@]host[:port][,host[:port]…][/path]`: the hosts, the path, and what the
    /// URL of the first host alone would say.
    #[cfg(any(feature = "cluster", feature = "sentinel"))]
    fn many(rest: &str, tls: bool) -> Result<(Vec<String>, &str, Self), RedisStoreError> {
        if rest.contains(['?', '#']) {
            return Err(not_understood());
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (format!("{login}@"), hosts),
            None => (String::new(), authority),
        };
        let scheme = if tls { "rediss" } else { "redis" };
        let mut first = None;
        let mut all = Vec::new();
        for host in hosts.split(',') {
            // Each has to be right, and the port is the usual one unless it says so.
            let url = Self::server(&format!("{scheme}://{login}{host}"))?;
            first.get_or_insert(url);
            all.push(host.to_owned());
        }
        let first = first.ok_or_else(not_understood)?;
        Ok((all, path, first))
    }
}

#[cfg(any(feature = "cluster", feature = "sentinel"))]
fn not_understood() -> RedisStoreError {
    RedisStoreError::misconfigured("the URL of the servers is malformed")
}

fn needs(feature: &str) -> RedisStoreError {
    RedisStoreError::misconfigured(format!(
        "the URL needs the feature `{feature}` of {}, which is off",
        env!("CARGO_PKG_NAME")
    ))
}
