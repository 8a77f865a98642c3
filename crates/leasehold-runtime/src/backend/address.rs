//! Addresses of nodes.

use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo};

/// A node of a cluster: `host:port`.
pub(super) type Node = Arc<str>;

/// Where keys live and pushes come from: the one server of a session, or a node of its cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Place(pub(super) Option<Node>);

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or("the server"))
    }
}

/// The same user, database, socket settings, encryption and certificates at another address. What it shows for a
/// certificate is checked against this host.
pub(super) fn at(template: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let host = host.to_owned();
    let addr = if let ConnectionAddr::TcpTls { insecure, tls_params, .. } = template.addr() {
        let (insecure, tls_params) = (*insecure, tls_params.clone());
        ConnectionAddr::TcpTls { host, port, insecure, tls_params }
    } else {
        ConnectionAddr::Tcp(host, port)
    };
    template.clone().set_addr(addr)
}

/// The host and port of what a client was made for; none for a socket of the file system.
pub(super) fn node_of(info: &ConnectionInfo) -> Option<Node> {
    if let ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } = info.addr()
    {
        Some(join(host, *port))
    } else {
        None
    }
}

pub(super) fn is_encrypted(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

pub(super) fn join(host: &str, port: u16) -> Node {
    format!("{host}:{port}").into()
}

/// `host:port`; an IPv6 address has colons of its own.
pub(super) fn split(node: &str) -> Option<(&str, u16)> {
    let (host, port) = node.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}
