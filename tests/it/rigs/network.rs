//! Tests in a network namespace of their own, where every address belongs to this machine and every port is free.

use std::process::Command;

use crate::rigs::binary::Ran as _;
use crate::rigs::debian;

/// Set in the process inside the namespace.
const INSIDE: &str = "TINTYPE_TEST_INSIDE_NETWORK";

/// Runs the test of this name in a process with a network namespace of its own. Returns true in that process, where the
/// test goes on, and false in this one once that process has succeeded.
#[expect(clippy::disallowed_methods, reason = "this variable is no setting; this process sets it for its child")]
pub fn is_own(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    debian::needs("ip", "iproute2");
    // Routes every IPv4 and IPv6 address to this machine.
    let script = "ip link set lo up && ip route add local 0.0.0.0/0 dev lo && ip -6 route add local ::/0 dev lo \
                  && exec \"$@\"";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "sh", "-c", script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("unshare, from util-linux, runs; the script needs ip, from iproute2");
    let text = output.text();
    let errors = output.errors();
    assert!(output.status.success() && text.contains("1 passed"), "{text}\n{errors}");
    false
}
