//! Whose cryptography TLS uses. The libraries that speak TLS ask the process; none brings a choice of its own.

/// Chooses ring for this process, unless something was chosen before. Every client calls it before it is made.
pub fn choose_ring() {
    // An error means that another provider was installed before: it is kept.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
