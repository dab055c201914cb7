//! What users beside those of the nodes need: an application that completes its requests by SQL, and reports.

use super::url::Database;
use crate::Error;

/// The statements that let users or roles use a database: each of `app` may complete attempts whose handles it has and store
/// messages, each of `reports` may read the views. A name may have a host behind it: `shop@10.0.0.%`. They are for a user with
/// `GRANT OPTION` to run; nothing is run here.
///
/// ```
/// let url = "mysql://ann@localhost/pay";
/// let sql = onlyonce_store::mysql::grants(url, &["shop"], &[]).unwrap();
/// assert!(sql.starts_with("GRANT EXECUTE ON PROCEDURE `pay`.onlyonce_hold TO `shop`;\n"));
/// ```
///
/// # Errors
///
/// `Misconfigured` where the URL cannot be used. It does not connect.
pub fn grants<R: AsRef<str>>(url: &str, app: &[R], reports: &[R]) -> Result<String, Error> {
    const PROCEDURES: [&str; 5] = [
        "onlyonce_hold",
        "onlyonce_complete",
        "onlyonce_send",
        "onlyonce_complete_sealed",
        "onlyonce_send_sealed",
    ];
    let database = quoted(&Database::parse(url)?.name);
    let list = |users: &[R]| users.iter().map(|user| account(user.as_ref())).collect::<Vec<_>>().join(", ");
    let (app, reports) = (list(app), list(reports));
    let mut sql = String::new();
    if !app.is_empty() {
        for procedure in PROCEDURES {
            sql += &format!("GRANT EXECUTE ON PROCEDURE {database}.{procedure} TO {app};\n");
        }
        sql += &format!(
            "GRANT INSERT (`key`, destination, payload, content_type, group_key, due_at) ON {database}.onlyonce_outbox TO \
             {app}; -- only for plain INSERTs\n"
        );
    }
    if !reports.is_empty() {
        for view in ["onlyonce_keys", "onlyonce_messages"] {
            sql += &format!("GRANT SELECT ON {database}.{view} TO {reports};\n");
        }
    }
    Ok(sql)
}

/// A user, with its host where one is named, or a role.
fn account(name: &str) -> String {
    match name.rsplit_once('@') {
        Some((user, host)) => format!("{}@{}", quoted(user), quoted(host)),
        None => quoted(name),
    }
}

/// A name as an identifier.
pub(super) fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W09: names are quoted, whatever they are.
    #[test]
    fn names_are_quoted_and_nobody_is_granted_more_than_was_asked_for() {
        let url = "mysql://ann@localhost/My%20%60Keys";
        let sql = grants(url, &["shop@10.0.0.%", "a`b; DROP"], &["Bob"]).unwrap();
        let lines: Vec<&str> = sql.lines().collect();
        let to = "TO `shop`@`10.0.0.%`, `a``b; DROP`;";
        assert_eq!(lines.len(), 8);
        assert_eq!(lines[0], format!("GRANT EXECUTE ON PROCEDURE `My ``Keys`.onlyonce_hold {to}"));
        assert_eq!(
            lines[5],
            format!(
                "GRANT INSERT (`key`, destination, payload, content_type, group_key, due_at) ON \
                 `My ``Keys`.onlyonce_outbox {to} -- only for plain INSERTs"
            )
        );
        let only_reports = grants("mysql://ann@localhost/pay", &[], &["bob"]).unwrap();
        let expected = "GRANT SELECT ON `pay`.onlyonce_keys TO `bob`;\nGRANT SELECT ON `pay`.onlyonce_messages TO `bob`;\n";
        assert_eq!(only_reports, expected);
        assert!(grants("postgres://ann@localhost/pay", &["shop"], &[]).is_err());
    }
}
