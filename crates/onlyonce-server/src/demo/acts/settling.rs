//! Three times the service dies after it has charged, and nobody knows; each time somebody finds out: a probe, the bank's own
//! webhook, a person.

use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use ring::hmac;
use serde_json::{Value, json};
use tokio::process::Command;

use super::super::bank::{Card, Charge};
use super::super::client::{ASKED, Answer, Client, Order};
use super::super::report::Act;
use super::super::service::receipt;
use super::super::stage::Stage;
use super::{is_refused, order};

/// How long a client waits for somebody to find out, in seconds.
const WAIT: u32 = 10;

pub(super) async fn by_probe(stage: &mut Stage) -> Result<Act> {
    let mut act =
        Act::new("probe", "The same again, but the service can be asked: the gateway asks and finds out");
    let paid = Order { path: ASKED, ..order("asked-1", Card::Crashing) };
    lose(stage, &mut act, &paid).await?;
    // It waits for the verdict, as for an answer.
    let found = stage.client().await?.pay(&Order { wait: Some(WAIT), ..paid.clone() }).await?;
    let charge = charge(stage, &paid)?;
    act.promise("a retry that waits gets the receipt of the charge that was made: 201, a replay", {
        found.status == 201 && found.is_replay() && body(&found) == Some(receipt(&charge))
    });
    Ok(stage.counted(act, &paid, 2, 1))
}

pub(super) async fn by_webhook(stage: &mut Stage) -> Result<Act> {
    let mut act = Act::new("webhook", "The bank reports a lost payment by a signed webhook");
    let paid = order("told-1", Card::Crashing);
    lose(stage, &mut act, &paid).await?;
    let charge = charge(stage, &paid)?;
    let told = json!({
        "id": "event-1",
        "token": charge.payment.token,
        "verdict": "happened",
        "response": {
            "status": 201,
            "headers": { "content-type": "application/json" },
            "body": receipt(&charge).to_string(),
        },
    });
    let told = told.to_string();
    let mut bank = Client::connect(stage.admin()?).await?;
    let forged = post(&mut bank, &told, "a-secret-of-somebody-else").await?;
    act.promise(
        "a webhook with another signature is refused: 401, and nothing changes",
        forged.status == 401,
    );
    let heard = post(&mut bank, &told, &stage.secret).await?;
    act.promise("the bank's own is accepted and completes the record", {
        heard.status == 200 && body(&heard).is_some_and(|body| body["result"] == "applied")
    });
    let retried = stage.client().await?.pay(&paid).await?;
    act.promise("the retry gets what the bank reported: 201, a replay", {
        retried.status == 201 && retried.is_replay() && body(&retried) == Some(receipt(&charge))
    });
    Ok(stage.counted(act, &paid, 2, 1))
}

pub(super) async fn by_person(stage: &mut Stage) -> Result<Act> {
    let mut act = Act::new("person", "Nobody can be asked: a person looks at the bank's ledger and decides");
    let paid = order("decided-1", Card::Crashing);
    lose(stage, &mut act, &paid).await?;
    let charge = charge(stage, &paid)?;
    let admin = format!("http://{}", stage.admin()?);
    let listed = onlyonce(&["keys", "list", "--state", "unknown", "--json", "--admin", &admin]).await?;
    let items = listed["items"].as_array().cloned().unwrap_or_default();
    let scope = items.iter().find(|item| item["key"] == paid.key).and_then(|item| item["scope"].as_str());
    let scope = scope.context("the record is not among the unknown ones")?;
    let answer = receipt(&charge).to_string();
    let verdict = ["keys", "verdict", scope, paid.key, "happened", "--status", "201", "--body", &answer];
    let why = ["--header", "content-type: application/json", "--reason", "charged, says the ledger"];
    let command = [&verdict[..], &why, &["--admin", &admin]].concat();
    let judged = onlyonce(&[&command[..], &["--json"]].concat()).await?;
    act.promise(format!("onlyonce {}", shown(&command)), judged["result"] == "applied");
    let retried = stage.client().await?.pay(&paid).await?;
    act.promise("the retry gets that answer: 201, a replay; who decided, and why, is in the audit log", {
        retried.status == 201 && retried.is_replay() && body(&retried) == Some(receipt(&charge))
    });
    let log = onlyonce(&["log", "--json", "--admin", &admin]).await?;
    act.promise(
        "onlyonce log shows the decision and its reason",
        log["items"][0]["reason"] == "charged, says the ledger",
    );
    Ok(stage.counted(act, &paid, 2, 1))
}

/// Pays, and the service dies after it has charged.
async fn lose(stage: &mut Stage, act: &mut Act, paid: &Order) -> Result<()> {
    let lost = stage.client().await?.pay(paid).await?;
    act.promise("nobody knows whether it ran: 502 upstream_outcome_unknown", {
        is_refused(&lost, 502, "upstream_outcome_unknown")
    });
    stage.service.kill().await;
    stage.service.start_again().await
}

fn charge(stage: &Stage, paid: &Order) -> Result<Charge> {
    let charges = stage.bank.charges().into_iter();
    let mut made = charges.filter(|charge| charge.payment.order == paid.payment.order);
    made.next().context("the bank has not charged")
}

/// Sends a webhook, signed now with `secret`.
async fn post(bank: &mut Client, body: &str, secret: &str) -> Result<Answer> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, format!("{now}.{body}").as_bytes());
    let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let signature = ("onlyonce-signature", &*format!("t={now},v1={hex}"));
    bank.tell("/v1/webhooks/bank", signature, body.to_owned().into()).await
}

/// Runs a command of this program, and reads the JSON it prints.
async fn onlyonce(arguments: &[&str]) -> Result<Value> {
    let program = std::env::current_exe().context("this program does not know where it is")?;
    let command = Command::new(program).args(arguments).env_clear().stdin(Stdio::null()).output();
    let output = command.await.context("a command of this program cannot be started")?;
    let said = || format!("onlyonce {}: {}", shown(arguments), String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).with_context(said)
}

/// As it would be typed.
fn shown(arguments: &[&str]) -> String {
    let quoted = |argument: &&str| {
        let is_plain = argument.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./:".contains(&byte));
        if is_plain { (*argument).to_owned() } else { format!("'{}'", argument.replace('\'', r"'\''")) }
    };
    arguments.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

fn body(answer: &Answer) -> Option<Value> {
    serde_json::from_slice(&answer.body).ok()
}
