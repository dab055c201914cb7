//! On PostgreSQL one role migrates, another serves: as docs/engines.md has it.

use std::process::{Command, Output};

use onlyonce_testkit::engines::postgres::Server;

use crate::client::pay;
use crate::node::Site;
use crate::service::Service;

const PAGE: &str = include_str!("../../../../docs/engines.md");

/// The statements on the page after these words.
fn documented(after: &str, owner: &str, user: &str) -> String {
    let (_, rest) = PAGE.split_once(after).expect("the page has the block");
    let (_, rest) = rest.split_once("```sql\n").expect("a block of SQL follows");
    let (block, _) = rest.split_once("```").expect("the block ends");
    block
        .replace("onlyonce_owner", owner)
        .replace("onlyonce_user", user)
        .replace(" onlyonce;", &format!(" {owner};"))
        .replace("SCHEMA onlyonce ", &format!("SCHEMA {owner} "))
        .replace("onlyonce.", &format!("{owner}."))
        .replace("'…'", "'s3cret'")
}

fn migrate(store: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_onlyonce")).args(["migrate", "--store", store]).output().unwrap()
}

/// S04, E02
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_migrates_and_a_role_with_fewer_rights_serves() {
    let server = Server::shared();
    let owner = server.fresh_name();
    let user = format!("{owner}_user");
    let url =
        |login: &str| format!("{}?schema={owner}", server.url_of(&format!("{login}:s3cret"), "postgres"));
    server.sql(&documented("before the first start", &owner, &user));
    let service = Service::open().await;
    let site = Site { upstream: service.address, store: url(&user), settings: &[] };
    let told = site.try_node().await.unwrap_err();
    // Its log is JSON, and so is its last word.
    assert!(told.contains(r#"may not apply it; run \"onlyonce migrate\" as the owner"#), "{told}");
    let output = migrate(&url(&user));
    assert_eq!(output.status.code(), Some(2), "the same for migrate");
    let output = migrate(&url(&owner));
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let told = site.try_node().await.unwrap_err();
    assert!(told.contains("grant role"), "{told}");
    server.sql(&documented("after the migrations", &owner, &user));
    let node = site.node().await;
    assert_eq!(pay(node.address, "k").await.unwrap().status, 201);
    assert!(pay(node.address, "k").await.unwrap().is_replay());
}
