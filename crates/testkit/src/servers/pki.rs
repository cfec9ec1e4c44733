//! A private certificate authority made at run time, for servers that speak TLS.

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// A server's certificate with its key, and the authority that signed it, all in PEM.
pub(super) struct ServerIdentity {
    pub ca: String,
    pub certificate: String,
    pub key: String,
}

/// A fresh authority and a certificate by it for loopback addresses and `localhost` with all its subdomains.
pub(super) fn loopback_identity() -> Result<ServerIdentity> {
    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    ca.distinguished_name.push(DnType::CommonName, "Lifeboat test authority");
    let ca_certificate = ca.self_signed(&ca_key)?;

    let key = KeyPair::generate()?;
    let names = ["127.0.0.1", "::1", "localhost", "*.localhost"].map(str::to_owned);
    let certificate = CertificateParams::new(names)?.signed_by(&key, &Issuer::new(ca, ca_key))?;
    Ok(ServerIdentity { ca: ca_certificate.pem(), certificate: certificate.pem(), key: key.serialize_pem() })
}
