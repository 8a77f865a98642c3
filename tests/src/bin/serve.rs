//! Starts a server as a test does, prints its URL and waits to be killed: what becomes of a server
//! whose test process dies can only be seen from outside that process.

use std::io::Read;

use leasehold_tests::Server;

fn main() {
    let server = Server::start();
    println!("{}", server.url());
    std::io::stdin().read_to_end(&mut Vec::new()).ok();
}
