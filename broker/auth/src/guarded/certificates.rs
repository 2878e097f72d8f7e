//! An authority of our own, and the server's certificate.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair, KeyUsagePurpose, date_time_ymd,
};

use super::AuthError;

/// How long certificates last.
const LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Clocks of other machines may be behind by this.
const EARLIER: Duration = Duration::from_secs(24 * 3600);
/// Names by which the machine itself knows the server.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// All in PEM.
pub(super) struct Certificates {
    pub(super) authority: String,
    pub(super) authority_key: String,
    pub(super) server: String,
    pub(super) server_key: String,
}

/// Makes an authority and a certificate of it for a server that is known by `hosts`.
pub(super) fn make(hosts: &[String], unix_ms: u64) -> Result<Certificates, AuthError> {
    let fail = |e: rcgen::Error| AuthError::Certificate { hosts: hosts.to_vec(), reason: e.to_string() };
    let mut ours = params("Millrace authority", Vec::new(), unix_ms).map_err(fail)?;
    ours.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ours.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let authority = CertifiedIssuer::self_signed(ours, KeyPair::generate().map_err(fail)?).map_err(fail)?;

    let mut names: Vec<String> = LOCAL.map(str::to_owned).to_vec();
    names.extend(hosts.iter().filter(|host| !LOCAL.contains(&host.as_str())).cloned());
    let mut theirs = params("nats-server", names, unix_ms).map_err(fail)?;
    theirs.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // The servers of a cluster are each other's clients.
    theirs.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().map_err(fail)?;
    let server = theirs.signed_by(&key, &authority).map_err(fail)?;
    Ok(Certificates {
        authority: authority.pem(),
        authority_key: authority.key().serialize_pem(),
        server: server.pem(),
        server_key: key.serialize_pem(),
    })
}

fn params(name: &str, hosts: Vec<String>, unix_ms: u64) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let now = date_time_ymd(1970, 1, 1) + Duration::from_millis(unix_ms);
    params.not_before = now - EARLIER;
    params.not_after = now + LIFE;
    Ok(params)
}
