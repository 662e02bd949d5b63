//! Whom we trust, and how we show who we are.

use std::{fmt, io, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::error::RedisStoreError;

/// What TLS needs, as it was given: in PEM.
#[derive(Clone, Default)]
pub(super) struct Certificates {
    pub(super) authorities: Option<Vec<u8>>,
    /// A certificate, with those that lead to its authority, and its key.
    pub(super) client: Option<(Vec<u8>, Vec<u8>)>,
}

/// The same, understood.
#[derive(Clone)]
pub(super) struct Tls {
    /// `None`: those that the system trusts.
    authorities: Option<Arc<RootCertStore>>,
    client: Option<Arc<Identity>>,
}

struct Identity {
    certificates: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Certificates {
    pub(super) const fn is_empty(&self) -> bool {
        self.authorities.is_none() && self.client.is_none()
    }

    /// # Errors
    ///
    /// If something is malformed. The error quotes nothing of it.
    pub(super) fn read(&self) -> Result<Tls, RedisStoreError> {
        Ok(Tls {
            authorities: self.authorities()?,
            client: self.client()?,
        })
    }

    fn authorities(&self) -> Result<Option<Arc<RootCertStore>>, RedisStoreError> {
        let Some(pem) = &self.authorities else {
            return Ok(None);
        };
        let malformed = || unreadable("the authorities");
        let mut authorities = RootCertStore::empty();
        for certificate in certificates(pem).ok_or_else(malformed)? {
            authorities.add(certificate).map_err(|_| malformed())?;
        }
        Ok(Some(Arc::new(authorities)))
    }

    fn client(&self) -> Result<Option<Arc<Identity>>, RedisStoreError> {
        let Some((certificate, key)) = &self.client else {
            return Ok(None);
        };
        let certificates =
            certificates(certificate).ok_or_else(|| unreadable("the client's certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| unreadable("the key of the client's certificate"))?;
        Ok(Some(Arc::new(Identity { certificates, key })))
    }
}

fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    all.ok().filter(|all| !all.is_empty())
}

fn unreadable(what: &str) -> RedisStoreError {
    RedisStoreError::misconfigured(format!("TLS: {what} cannot be read as PEM"))
}

impl Tls {
    pub(super) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::new(self.config()?));
        connector.connect(name, stream).await
    }

    /// Made for each connection, so that what the system trusts by then counts.
    fn config(&self) -> io::Result<ClientConfig> {
        let authorities = match &self.authorities {
            Some(authorities) => Arc::clone(authorities),
            None => Arc::new(of_the_system()?),
        };
        // Without a choice rustls would panic where more than one is possible.
        let cryptography = CryptoProvider::get_default().cloned();
        let cryptography = cryptography.unwrap_or_else(|| Arc::new(ring::default_provider()));
        let config = ClientConfig::builder_with_provider(cryptography)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(authorities);
        let Some(client) = &self.client else {
            return Ok(config.with_no_client_auth());
        };
        config
            .with_client_auth_cert(client.certificates.clone(), client.key.clone_key())
            .map_err(io::Error::other)
    }
}

fn of_the_system() -> io::Result<RootCertStore> {
    let mut found = rustls_native_certs::load_native_certs();
    let mut authorities = RootCertStore::empty();
    authorities.add_parsable_certificates(found.certs);
    match found.errors.pop() {
        Some(error) if authorities.is_empty() => Err(io::Error::other(error)),
        _ => Ok(authorities),
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificates")
    }
}
