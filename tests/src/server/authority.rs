//! Certificates, made when a test needs them.

use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use redis::{Client, ClientTlsConfig, TlsCertificates};

/// A certificate authority of one test, which nobody else trusts. Clones are the same authority.
#[derive(Clone)]
pub struct Authority {
    root: Arc<Issuer<'static, KeyPair>>,
    certificate: String,
}

impl Authority {
    /// A new one. From now on this process has a crypto provider.
    #[must_use]
    pub fn new() -> Self {
        // An error means that there is one already.
        rustls::crypto::ring::default_provider().install_default().ok();
        let mut about = CertificateParams::new([]).expect("no names");
        about.distinguished_name.push(DnType::CommonName, "an authority of a test");
        about.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        about.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        let certificate = about.self_signed(&key).expect("a certificate").pem();
        Self { root: Arc::new(Issuer::new(about, key)), certificate }
    }

    /// A client at this URL (`rediss://…`) that trusts this authority and shows no certificate.
    #[must_use]
    pub fn client(&self, url: &str) -> Client {
        client(url, TlsCertificates { client_tls: None, root_cert: Some(self.root_pem()) })
    }

    /// The same with a certificate of this authority.
    #[must_use]
    pub fn known_client(&self, url: &str) -> Client {
        client(url, self.certificates())
    }

    /// Trusts this authority, and shows a certificate of its own.
    pub(super) fn certificates(&self) -> TlsCertificates {
        let (client_cert, client_key) = self.issue("a client");
        let [client_cert, client_key] = [client_cert, client_key].map(String::into_bytes);
        let client_tls = Some(ClientTlsConfig { client_cert, client_key });
        TlsCertificates { client_tls, root_cert: Some(self.root_pem()) }
    }

    /// Writes root, certificate and key of a server of this name (or IP address) into a folder, and
    /// answers the options that name the files.
    pub(super) fn equip(
        &self,
        name: &str,
        folder: &Path,
    ) -> Vec<(&'static str, std::path::PathBuf)> {
        let (certificate, key) = self.issue(name);
        let files = [
            ("--tls-ca-cert-file", "ca.pem", &self.certificate),
            ("--tls-cert-file", "server.pem", &certificate),
            ("--tls-key-file", "server.key", &key),
        ];
        files
            .map(|(option, file, text)| {
                let file = folder.join(file);
                std::fs::write(&file, text).expect("a folder of our own");
                (option, file)
            })
            .into()
    }

    fn issue(&self, name: &str) -> (String, String) {
        let name = name.replace(' ', "-");
        let key = KeyPair::generate().expect("a key");
        let about = CertificateParams::new([name]).expect("a name or an address");
        let certificate = about.signed_by(&key, &*self.root).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    fn root_pem(&self) -> Vec<u8> {
        self.certificate.clone().into_bytes()
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority(..)")
    }
}

fn client(url: &str, certificates: TlsCertificates) -> Client {
    Client::build_with_tls(url, certificates).expect("certificates, and a URL with TLS")
}
