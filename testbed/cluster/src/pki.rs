//! The cluster's own certificate authority, the certificates it signs, and the kubeconfigs made of them.

use crate::files;
use crate::spec::{Layout, NodeId, Spec, addresses};
use crate::{Error, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};

/// Makes the authority, every certificate and every kubeconfig of a cluster.
pub(crate) fn create(layout: &Layout, spec: &Spec) -> Result<()> {
    let authority = Authority::new(layout, spec.name.as_str())?;
    let first = NodeId::FIRST.address().to_string();
    let api_names = [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "127.0.0.1",
        addresses::API_SERVICE,
        &first,
    ];
    authority.sign("apiserver", "kube-apiserver", None, &api_names)?;
    authority.sign("admin", "admin", Some("system:masters"), &[])?;
    write_kubeconfig(layout, "admin", &layout.kubeconfig())?;
    for node in spec.node_ids() {
        let name = format!("kubelet-{node}");
        authority.sign(&name, &format!("system:node:{node}"), Some("system:nodes"), &[])?;
        write_kubeconfig(layout, &name, &layout.conf(&format!("{name}.kubeconfig")))?;
    }
    // MinIO insists on these file names inside a folder of their own.
    authority.sign("minio/private", "object-store", None, &["localhost", "127.0.0.1", &first])?;
    files::write(&layout.pki("minio/public.crt"), files::read(&layout.pki("minio/private.crt"))?)?;
    let accounts = KeyPair::generate().map_err(failed)?;
    files::write_secret(&layout.pki("accounts.key"), accounts.serialize_pem())?;
    files::write(&layout.pki("accounts.pub"), accounts.public_key_pem())
}

struct Authority<'l> {
    layout: &'l Layout,
    issuer: Issuer<'static, KeyPair>,
}

impl<'l> Authority<'l> {
    fn new(layout: &'l Layout, cluster: &str) -> Result<Self> {
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, format!("lifeboat-testbed-{cluster}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key).map_err(failed)?;
        files::write(&layout.pki("ca.crt"), certificate.pem())?;
        // The authority's key is never written: nothing signs after `up`.
        Ok(Self { layout, issuer: Issuer::new(params, key) })
    }

    fn sign(&self, file: &str, common_name: &str, group: Option<&str>, names: &[&str]) -> Result<()> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).map_err(failed)?;
        params.distinguished_name = DistinguishedName::new();
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        files::write(&self.layout.pki(&format!("{file}.crt")), certificate.pem())?;
        files::write_secret(&self.layout.pki(&format!("{file}.key")), key.serialize_pem())
    }
}

fn write_kubeconfig(layout: &Layout, user: &str, path: &std::path::Path) -> Result<()> {
    let config = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testbed", "cluster": {
            "server": format!("https://{}:{}", NodeId::FIRST.address(), addresses::API_PORT),
            "certificate-authority": layout.pki("ca.crt"),
        }}],
        "users": [{"name": "user", "user": {
            "client-certificate": layout.pki(&format!("{user}.crt")),
            "client-key": layout.pki(&format!("{user}.key")),
        }}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "user"}}],
        "current-context": "testbed",
    });
    files::write_secret(path, format!("{config:#}\n"))
}

fn failed(problem: rcgen::Error) -> Error {
    Error::unexpected("certificates", problem)
}
