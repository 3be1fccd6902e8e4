//! Redis Cluster is refused, whichever of its nodes is named and however far it has come.

use tempfile::TempDir;

use super::administration::doctor;
use crate::rigs::redis::RedisServer;
use crate::rigs::wait::until;

const OPTIONS: [&str; 2] = ["--cluster-enabled", "yes"];

fn ask(node: &RedisServer, words: &[&str]) -> String {
    redis::cmd("CLUSTER").arg(words).query(&mut node.connection()).expect("an answer")
}

#[tokio::test]
async fn a_cluster_is_refused_by_name() {
    let data = TempDir::new().expect("a directory");
    let nodes = [RedisServer::start_with(&OPTIONS), RedisServer::start_with(&OPTIONS)];
    let refusal = |url: &str| {
        let (well, detail) = doctor(&data, &["--redis", url]);
        assert!(!well && detail.contains("Redis Cluster is not supported"), "{detail}");
        detail
    };
    let detail = refusal(&nodes[0].url());
    assert!(detail.contains("ClusterDown"), "{detail}");
    ask(&nodes[0], &["ADDSLOTSRANGE", "0", "8191"]);
    ask(&nodes[1], &["ADDSLOTSRANGE", "8192", "16383"]);
    ask(&nodes[0], &["MEET", "127.0.0.1", &nodes[1].port().to_string()]);
    for node in &nodes {
        until(async || ask(node, &["INFO"]).contains("cluster_state:ok")).await;
    }
    for node in &nodes {
        let detail = refusal(&node.url());
        assert!(detail.contains("Moved"), "{detail}");
    }
    refusal(&format!("{}/1", nodes[0].url()));
}
