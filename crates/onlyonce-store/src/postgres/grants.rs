//! What roles beside those of the nodes need: an application that completes its requests by SQL, and reports.

use super::url::{Database, quoted};
use crate::Error;

/// The statements that let roles use a schema: each of `app` may complete attempts whose handles it has and store messages,
/// each of `reports` may read the views. They are for the schema's owner, or a superuser, to run; nothing is run here.
///
/// ```
/// let url = "postgres://ann@localhost/pay?schema=onlyonce";
/// let sql = onlyonce_store::postgres::grants(url, &["shop"], &[]).unwrap();
/// assert!(sql.starts_with("GRANT USAGE ON SCHEMA \"onlyonce\" TO \"shop\";\n"));
/// ```
///
/// # Errors
///
/// `Misconfigured` where the URL cannot be used. It does not connect.
pub fn grants<R: AsRef<str>>(url: &str, app: &[R], reports: &[R]) -> Result<String, Error> {
    let schema = Database::parse(url)?.quoted_schema();
    let list = |roles: &[R]| roles.iter().map(|role| quoted(role.as_ref())).collect::<Vec<_>>().join(", ");
    let (app, reports) = (list(app), list(reports));
    let mut sql = String::new();
    for roles in [&app, &reports].into_iter().filter(|roles| !roles.is_empty()) {
        sql += &format!("GRANT USAGE ON SCHEMA {schema} TO {roles};\n");
    }
    if !app.is_empty() {
        sql += &format!(
            "GRANT EXECUTE ON FUNCTION {schema}.onlyonce_hold, {schema}.onlyonce_complete, {schema}.onlyonce_send, \
             {schema}.onlyonce_complete_sealed, {schema}.onlyonce_send_sealed TO {app};\n\
             GRANT INSERT (key, destination, payload, content_type, group_key, due_at) ON {schema}.onlyonce_outbox TO {app}; -- \
             only for plain INSERTs\n"
        );
    }
    if !reports.is_empty() {
        sql += &format!("GRANT SELECT ON {schema}.onlyonce_keys, {schema}.onlyonce_messages TO {reports};\n");
    }
    Ok(sql)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W09: names are quoted, whatever they are.
    #[test]
    fn names_are_quoted_and_nobody_is_granted_more_than_was_asked_for() {
        let url = "postgres://ann@localhost/pay?schema=My%20%22Keys";
        let sql = grants(url, &["shop", "a\"b; DROP"], &["Bob"]).unwrap();
        let expected = r#"GRANT USAGE ON SCHEMA "My ""Keys" TO "shop", "a""b; DROP";
GRANT USAGE ON SCHEMA "My ""Keys" TO "Bob";
GRANT EXECUTE ON FUNCTION "My ""Keys".onlyonce_hold, "My ""Keys".onlyonce_complete, "My ""Keys".onlyonce_send, "My ""Keys".onlyonce_complete_sealed, "My ""Keys".onlyonce_send_sealed TO "shop", "a""b; DROP";
GRANT INSERT (key, destination, payload, content_type, group_key, due_at) ON "My ""Keys".onlyonce_outbox TO "shop", "a""b; DROP"; -- only for plain INSERTs
GRANT SELECT ON "My ""Keys".onlyonce_keys, "My ""Keys".onlyonce_messages TO "Bob";
"#;
        assert_eq!(sql, expected);
        let only_reports = grants("postgres://ann@localhost/pay", &[], &["bob"]).unwrap();
        let expected = "GRANT USAGE ON SCHEMA \"public\" TO \"bob\";\n\
                        GRANT SELECT ON \"public\".onlyonce_keys, \"public\".onlyonce_messages TO \"bob\";\n";
        assert_eq!(only_reports, expected);
        assert!(grants("mysql://ann@localhost/pay", &["shop"], &[]).is_err());
    }
}
