//! The table: what it must be like, how it is made, and what is wrong, risky or worth knowing about it.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::DynamoDb;
use super::failure::{Failure, Fault};
use super::layout::{HEAD, LAYOUT, STORE};
use super::read::For;
use super::url::Reap;
use super::value::{Item, names};
use crate::{Error, ErrorKind, Finding, Level};

/// How long a table may take to become active.
const ACTIVE_WITHIN: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The attribute by which DynamoDB deletes.
const TTL: &str = "ttl";
/// The table's key, and those of its indexes.
const KEY: [&str; 2] = ["id", "part"];
const INDEXES: [(&str, [&str; 2]); 2] =
    [("due", ["due_shard", "due_at"]), ("open", ["open_shard", "open_since"])];
/// The types of all of them.
const TYPES: [(&str, &str); 6] = [
    ("id", "B"),
    ("part", "S"),
    ("due_shard", "S"),
    ("due_at", "N"),
    ("open_shard", "S"),
    ("open_since", "N"),
];

/// The table as it is told; none where there is none.
pub(super) async fn described(store: &DynamoDb) -> Result<Option<Value>, Error> {
    match store.call(For::Background, "DescribeTable", &json!({ "TableName": store.table() })).await {
        Ok(mut answer) => Ok(Some(answer["Table"].take())),
        Err(Fault::NoTable(_)) => Ok(None),
        Err(fault) => Err(fault.into()),
    }
}

/// What creates it.
pub(super) fn definition(store: &DynamoDb) -> Value {
    let schema = |[hash, range]: [&str; 2]| {
        json!([
            { "AttributeName": hash, "KeyType": "HASH" },
            { "AttributeName": range, "KeyType": "RANGE" },
        ])
    };
    let types = TYPES.map(|(name, kind)| json!({ "AttributeName": name, "AttributeType": kind }));
    let indexes = INDEXES.map(|(name, key)| {
        json!({
            "IndexName": name,
            "KeySchema": schema(key),
            "Projection": { "ProjectionType": "KEYS_ONLY" },
        })
    });
    json!({
        "TableName": store.table(),
        "KeySchema": schema(KEY),
        "AttributeDefinitions": types,
        "BillingMode": "PAY_PER_REQUEST",
        "GlobalSecondaryIndexes": indexes,
    })
}

/// Creates the table where it is missing, and waits until it can be used. Several may do so at once.
pub(super) async fn create(store: &DynamoDb) -> Result<(), Error> {
    if described(store).await?.is_none() {
        match store.call(For::Background, "CreateTable", &definition(store)).await {
            // Another was faster.
            Ok(_) | Err(Fault::InUse(_)) => {}
            Err(fault) => return Err(fault.into()),
        }
    }
    let over = Instant::now() + ACTIVE_WITHIN;
    loop {
        let table = described(store).await?.unwrap_or_default();
        if table["TableStatus"] == "ACTIVE" {
            refuse(store, &table)?;
            break;
        }
        if Instant::now() >= over {
            let status = table["TableStatus"].as_str().unwrap_or("absent");
            let what = format!(
                "{}: the table is {status} after {} s; run \"onlyonce migrate\" again once it is ACTIVE",
                store.shown_here(),
                ACTIVE_WITHIN.as_secs()
            );
            return Err(Failure::refused(ErrorKind::Unavailable, what).into());
        }
        sleep(LOOK_EVERY).await;
    }
    enable_ttl(store).await?;
    name(store).await
}

async fn enable_ttl(store: &DynamoDb) -> Result<(), Error> {
    if is_ttl_enabled(store).await? {
        return Ok(());
    }
    let body = json!({
        "TableName": store.table(),
        "TimeToLiveSpecification": { "AttributeName": TTL, "Enabled": true },
    });
    match store.call(For::Background, "UpdateTimeToLive", &body).await {
        Ok(_) => Ok(()),
        // Another was faster.
        Err(_) if is_ttl_enabled(store).await? => Ok(()),
        Err(fault) => Err(fault.into()),
    }
}

async fn is_ttl_enabled(store: &DynamoDb) -> Result<bool, Error> {
    let body = json!({ "TableName": store.table() });
    let answer = store.call(For::Background, "DescribeTimeToLive", &body).await?;
    let told = &answer["TimeToLiveDescription"];
    let is_on = matches!(told["TimeToLiveStatus"].as_str(), Some("ENABLED" | "ENABLING"));
    Ok(is_on && told["AttributeName"] == TTL)
}

/// Gives the store a name, an epoch and a layout, where it has none.
pub(super) async fn name(store: &DynamoDb) -> Result<(), Error> {
    let mut item = Item::key(STORE, HEAD);
    item.put_number("layout", LAYOUT);
    item.put_number("epoch", 0);
    item.put_bytes("name", &crate::memory::random_name());
    let body = json!({
        "TableName": store.table(),
        "Item": item.value(),
        "ConditionExpression": "attribute_not_exists(#id)",
        "ExpressionAttributeNames": names(&["id"]),
    });
    match store.call(For::Background, "PutItem", &body).await {
        Ok(_) | Err(Fault::Condition(_)) => Ok(()),
        Err(fault) => Err(fault.into()),
    }
}

/// Refuses a table on which a promise would not hold.
///
/// # Errors
///
/// `Misconfigured`, with the first finding that is an error.
pub(super) fn refuse(store: &DynamoDb, table: &Value) -> Result<(), Error> {
    match of_table(table).into_iter().find(|finding| finding.level == Level::Error) {
        None => Ok(()),
        Some(Finding { says, remedy, .. }) => {
            let message = format!("{}: {says}; {remedy}", store.shown_here());
            Err(Failure::refused(ErrorKind::Misconfigured, message).into())
        }
    }
}

/// The table is not there.
pub(super) fn missing(store: &DynamoDb) -> Error {
    let message = format!(
        "{}: there is no such table; check table and region, or run \"onlyonce migrate\" to create it",
        store.shown_here()
    );
    Failure::refused(ErrorKind::Misconfigured, message).into()
}

pub(super) async fn examine(store: &DynamoDb) -> Result<Vec<Finding>, Error> {
    let Some(table) = described(store).await? else { return Err(missing(store)) };
    let mut findings = of_table(&table);
    let mut add = |level, code, says: String, remedy: &str| {
        findings.push(Finding { level, code, says, remedy: remedy.to_owned() });
    };
    let found = store.item(For::Background, Item::key(STORE, HEAD)).await?;
    let layout = found.and_then(|item| item.number("layout"));
    if let Some(layout) = layout.filter(|layout| *layout != LAYOUT) {
        let says = format!("the table has layout {layout}, this release has layout {LAYOUT}");
        add(Level::Error, "dynamodb.layout", says, "upgrade this node, or use another table");
    }
    if store.reaping() == Reap::Ttl && !is_ttl_enabled(store).await? {
        let says = "time to live is not enabled, so nothing deletes records that have expired".to_owned();
        let remedy =
            "enable it for the attribute \"ttl\" (\"onlyonce migrate\" does), or write reap=index in the URL";
        add(Level::Warning, "dynamodb.ttl", says, remedy);
    }
    if store.client.clock.is_undated() {
        let says = "its answers have no date, so this machine's own clock counts: leases and expiry are right only if the \
                    clocks of all nodes agree"
            .to_owned();
        add(Level::Warning, "dynamodb.clock", says, "use AWS, or keep the clocks of all nodes set by NTP");
    }
    Ok(findings)
}

/// What its description tells.
fn of_table(table: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |level, code, says: String, remedy: &str| {
        findings.push(Finding { level, code, says, remedy: remedy.to_owned() });
    };
    let other = "use another table, which \"onlyonce migrate\" creates";
    if let Some(says) = wrong_key(table, &table["KeySchema"], KEY) {
        add(Level::Error, "dynamodb.key_schema", format!("the table's {says}"), other);
    }
    for (name, key) in INDEXES {
        let indexes = table["GlobalSecondaryIndexes"].as_array();
        let index = indexes.into_iter().flatten().find(|index| index["IndexName"] == name);
        let says = match index {
            None => Some(format!("the table has no index \"{name}\"")),
            Some(index) => {
                wrong_key(table, &index["KeySchema"], key).map(|says| format!("index \"{name}\": its {says}"))
            }
        };
        if let Some(says) = says {
            add(Level::Error, "dynamodb.index", says, other);
        }
    }
    let replicas = table["Replicas"].as_array().map_or(0, Vec::len);
    if replicas > 0 && table["MultiRegionConsistency"] != "STRONG" {
        add(
            Level::Error,
            "dynamodb.global_table",
            "it is a global table whose regions agree later: two regions may both run a key".to_owned(),
            "use a global table with strong consistency, or a table of one region",
        );
    }
    let billing = table["BillingModeSummary"]["BillingMode"].as_str();
    let capacity = table["ProvisionedThroughput"]["WriteCapacityUnits"].as_u64().unwrap_or(0);
    if billing != Some("PAY_PER_REQUEST") && capacity > 0 {
        add(
            Level::Warning,
            "dynamodb.provisioned",
            format!("it has provisioned capacity ({capacity} write units): what is above it is refused"),
            "use on-demand capacity, or let the capacity follow the load",
        );
    }
    findings
}

/// What is wrong about a key: none where it is as it must be.
fn wrong_key(table: &Value, schema: &Value, [hash, range]: [&str; 2]) -> Option<String> {
    let kind = |name: &str| {
        let types = table["AttributeDefinitions"].as_array();
        let told = types.into_iter().flatten().find(|told| told["AttributeName"] == name);
        told.and_then(|told| told["AttributeType"].as_str()).unwrap_or("?").to_owned()
    };
    let parts = schema.as_array().map(Vec::as_slice).unwrap_or_default();
    let shown = |part: &Value| {
        let name = part["AttributeName"].as_str().unwrap_or("?");
        format!("{name} ({})", kind(name))
    };
    let is: Vec<String> = parts.iter().map(shown).collect();
    let must_be = [hash, range].map(|name| {
        let kind = TYPES.iter().find(|(of, _)| *of == name).map_or("?", |(_, kind)| kind);
        format!("{name} ({kind})")
    });
    (is != must_be).then(|| format!("key is {}, and must be {}", is.join(", "), must_be.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(change: impl FnOnce(&mut Value)) -> Vec<&'static str> {
        let schema = |names: [&str; 2]| json!(names.map(|name| json!({ "AttributeName": name })));
        let mut table = json!({
            "KeySchema": schema(KEY),
            "AttributeDefinitions": TYPES.map(|(name, kind)| json!({ "AttributeName": name, "AttributeType": kind })),
            "GlobalSecondaryIndexes": INDEXES.map(|(name, key)| json!({ "IndexName": name, "KeySchema": schema(key) })),
            "BillingModeSummary": { "BillingMode": "PAY_PER_REQUEST" },
        });
        change(&mut table);
        of_table(&table).into_iter().map(|finding| finding.code).collect()
    }

    /// X01
    #[test]
    fn a_table_on_which_a_promise_would_not_hold_is_found() {
        assert_eq!(codes(|_| {}), [""; 0]);
        assert_eq!(
            codes(|table| table["Replicas"] = json!([{ "RegionName": "x" }])),
            ["dynamodb.global_table"]
        );
        let strong = |table: &mut Value| {
            table["Replicas"] = json!([{ "RegionName": "x" }]);
            table["MultiRegionConsistency"] = "STRONG".into();
        };
        assert_eq!(codes(strong), [""; 0]);
        assert_eq!(codes(|table| table["GlobalSecondaryIndexes"] = Value::Null), ["dynamodb.index"; 2]);
        assert_eq!(
            codes(|table| table["AttributeDefinitions"][0]["AttributeType"] = "S".into()),
            ["dynamodb.key_schema"]
        );
        let provisioned = |table: &mut Value| {
            table["BillingModeSummary"] = Value::Null;
            table["ProvisionedThroughput"] = json!({ "WriteCapacityUnits": 5 });
        };
        assert_eq!(codes(provisioned), ["dynamodb.provisioned"]);
    }
}
