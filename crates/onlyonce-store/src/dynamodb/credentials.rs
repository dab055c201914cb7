//! AWS credentials: whose calls they are.
//!
//! They are looked for in this order, and the first that is there counts:
//!
//! 1. the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`;
//! 2. the profile `AWS_PROFILE`, or `default`, of `~/.aws/credentials` and `~/.aws/config` (`AWS_SHARED_CREDENTIALS_FILE`,
//!    `AWS_CONFIG_FILE`), where it has keys;
//! 3. the agent of a container (ECS, EKS Pod Identity): `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI` or `…_FULL_URI`;
//! 4. the role of an EC2 instance, by its metadata service, version 2.
//!
//! For an emulator on this machine the environment counts, and otherwise made-up keys. Keys that expire are renewed before they
//! do. Profiles that assume a role, sign on or run a program, and web identities, are refused by name.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use onlyonce_core::time::Timestamp;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::failure::Failure;
use super::http::{Answer, Pool};
use super::url::Endpoint;
use crate::ErrorKind;

/// An access key. Its secret is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    /// The id of the access key.
    pub access_key_id: String,
    /// Its secret.
    pub secret_access_key: String,
    /// The token of a session, where the key is temporary.
    pub session_token: Option<String>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("access_key_id", &self.access_key_id).finish_non_exhaustive()
    }
}

/// So long before they expire, keys are renewed.
const RENEWED_BEFORE: Duration = Duration::from_secs(300);
/// Keys from a file are read again after so long: somebody may rotate them.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(600);
/// Keys that could not be renewed, and have not expired, are used for so long before that is tried again.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(30);
/// How long an agent or the metadata service may take, in all.
const FETCHED_WITHIN: Duration = Duration::from_secs(4);
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// Where the agent of a container of ECS listens, and where the metadata service of EC2 does.
const CONTAINER_HOST: &str = "169.254.170.2";
const METADATA_HOST: &str = "169.254.169.254";
/// Other hosts that an agent may have without TLS: EKS Pod Identity.
const AGENTS: [&str; 3] = [CONTAINER_HOST, "169.254.170.23", "fd00:ec2::23"];
const REMEDY: &str =
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine or the container a role";

/// Finds keys, and keeps them until they must be renewed.
pub(super) struct Provider {
    environment: Environment,
    fixed: Option<Keys>,
    is_emulator: bool,
    known: Mutex<Option<Known>>,
}

/// The variables of the process, or of a test.
pub(super) type Environment = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

#[derive(Clone)]
struct Known {
    keys: Keys,
    renew_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
}

impl Known {
    fn forever(keys: Keys) -> Self {
        Self { keys, renew_at: None, expires_at: None }
    }
}

impl Provider {
    pub(super) fn new(environment: Environment, fixed: Option<Keys>, is_emulator: bool) -> Self {
        Self { environment, fixed, is_emulator, known: Mutex::default() }
    }

    /// The keys to sign with now.
    pub(super) async fn keys(&self, now: Timestamp) -> Result<Keys, Failure> {
        let mut known = self.known.lock().await;
        if let Some(known) = &*known
            && known.renew_at.is_none_or(|renew_at| now < renew_at)
        {
            return Ok(known.keys.clone());
        }
        match (self.find(now).await, known.take()) {
            (Ok(found), _) => {
                let keys = found.keys.clone();
                *known = Some(found);
                Ok(keys)
            }
            (Err(failure), Some(old)) if old.expires_at.is_some_and(|expires_at| now < expires_at) => {
                tracing::warn!("AWS credentials could not be renewed, and have not expired: {failure}");
                let keys = old.keys.clone();
                *known = Some(Known { renew_at: Some(now.plus(TRIED_AGAIN_AFTER)), ..old });
                Ok(keys)
            }
            (Err(failure), _) => Err(failure),
        }
    }

    /// These keys were refused: others are looked for.
    pub(super) async fn forget(&self) {
        *self.known.lock().await = None;
    }

    async fn find(&self, now: Timestamp) -> Result<Known, Failure> {
        if let Some(keys) = &self.fixed {
            return Ok(Known::forever(keys.clone()));
        }
        if let Some(keys) = self.of_environment()? {
            return Ok(Known::forever(keys));
        }
        if self.is_emulator {
            let made_up = || "onlyonce".to_owned();
            return Ok(Known::forever(Keys {
                access_key_id: made_up(),
                secret_access_key: made_up(),
                session_token: None,
            }));
        }
        if let Some(keys) = self.of_profile()? {
            return Ok(Known { keys, renew_at: Some(now.plus(READ_AGAIN_AFTER)), expires_at: None });
        }
        if self.variable("AWS_WEB_IDENTITY_TOKEN_FILE").is_some() {
            return Err(wrong(
                "AWS_WEB_IDENTITY_TOKEN_FILE is set, and this release does not exchange web identities; use EKS Pod Identity, \
                 or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            ));
        }
        let fetching = timeout(FETCHED_WITHIN, self.fetch());
        let late = |_| Err(none_found(&format!("no answer within {} s", FETCHED_WITHIN.as_secs())));
        fetching.await.unwrap_or_else(late)
    }

    fn of_environment(&self) -> Result<Option<Keys>, Failure> {
        match (self.variable("AWS_ACCESS_KEY_ID"), self.variable("AWS_SECRET_ACCESS_KEY")) {
            (Some(access_key_id), Some(secret_access_key)) => {
                let session_token = self.variable("AWS_SESSION_TOKEN");
                Ok(Some(Keys { access_key_id, secret_access_key, session_token }))
            }
            (None, None) => Ok(None),
            (Some(_), None) | (None, Some(_)) => Err(wrong(
                "only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set; set both, or neither",
            )),
        }
    }

    fn of_profile(&self) -> Result<Option<Keys>, Failure> {
        let chosen = self.variable("AWS_PROFILE");
        let profile = chosen.as_deref().unwrap_or("default");
        let in_config = if profile == "default" { profile.to_owned() } else { format!("profile {profile}") };
        let mut is_there = false;
        for (variable, usual, section) in [
            ("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials", profile),
            ("AWS_CONFIG_FILE", ".aws/config", &in_config),
        ] {
            let Some(file) = self.file(variable, usual) else { continue };
            let Some(section) = read_section(&file, section)? else { continue };
            is_there = true;
            let value =
                |name: &str| section.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
            if let (Some(access_key_id), Some(secret_access_key)) =
                (value("aws_access_key_id"), value("aws_secret_access_key"))
            {
                let session_token = value("aws_session_token");
                return Ok(Some(Keys { access_key_id, secret_access_key, session_token }));
            }
            let other =
                ["role_arn", "sso_session", "sso_start_url", "credential_process", "web_identity_token_file"];
            if let Some(other) = other.into_iter().find(|other| value(other).is_some()) {
                return Err(wrong(&format!(
                    "profile \"{profile}\" of {} has {other}, which this release does not follow; export its keys, as \
                     \"aws configure export-credentials\" does, or use a profile with keys",
                    file.display()
                )));
            }
        }
        match chosen {
            Some(chosen) if !is_there => Err(wrong(&format!(
                "AWS_PROFILE is \"{chosen}\", and there is no such profile; write it into ~/.aws/credentials, or unset it"
            ))),
            _ => Ok(None),
        }
    }

    fn file(&self, variable: &str, usual: &str) -> Option<PathBuf> {
        let file = self.variable(variable).map(PathBuf::from);
        file.or_else(|| Some(Path::new(&self.variable("HOME")?).join(usual))).filter(|file| file.exists())
    }

    async fn fetch(&self) -> Result<Known, Failure> {
        let told = match self.agent()? {
            Some((endpoint, path)) => {
                let token = match self.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") {
                    Some(file) => Some(read(Path::new(&file))?.trim().to_owned()),
                    None => self.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
                };
                let token = token.as_deref().map(|token| ("authorization", token));
                ask(&Pool::new(endpoint, CONNECT_WITHIN), "GET", &path, token).await?
            }
            None => self.of_instance().await?,
        };
        parse(&told)
    }

    /// The endpoint of the agent of a container, where there is one.
    fn agent(&self) -> Result<Option<(Endpoint, String)>, Failure> {
        if let Some(path) = self.variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") {
            return Ok(Some((plain(CONTAINER_HOST), path)));
        }
        let Some(uri) = self.variable("AWS_CONTAINER_CREDENTIALS_FULL_URI") else { return Ok(None) };
        let unusable = |why: &str| {
            wrong(&format!(
                "AWS_CONTAINER_CREDENTIALS_FULL_URI is \"{uri}\", {why}; write the URI of the agent"
            ))
        };
        let parsed: http::Uri = uri.parse().map_err(|_| unusable("which is no URI"))?;
        let host = parsed.host().ok_or_else(|| unusable("which has no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_encrypted = parsed.scheme_str() == Some("https");
        let port = parsed.port_u16().unwrap_or(if is_encrypted { 443 } else { 80 });
        let endpoint = Endpoint { is_encrypted, host, port };
        if !is_encrypted && !endpoint.is_local() && !AGENTS.contains(&&*endpoint.host) {
            return Err(unusable("which is on another machine and not encrypted"));
        }
        let path = parsed.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        Ok(Some((endpoint, path.to_owned())))
    }

    /// The role of an EC2 instance.
    async fn of_instance(&self) -> Result<Value, Failure> {
        if self.variable("AWS_EC2_METADATA_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        {
            return Err(none_found("AWS_EC2_METADATA_DISABLED is true"));
        }
        let endpoint = match self.variable("AWS_EC2_METADATA_SERVICE_ENDPOINT") {
            None => plain(METADATA_HOST),
            Some(text) => Endpoint::of_metadata(&text).ok_or_else(|| {
                wrong(&format!("AWS_EC2_METADATA_SERVICE_ENDPOINT is \"{text}\"; write http://HOST"))
            })?,
        };
        let pool = Pool::new(endpoint, CONNECT_WITHIN);
        let lifetime = Some(("x-aws-ec2-metadata-token-ttl-seconds", "21600"));
        let token = text(&send(&pool, "PUT", "/latest/api/token", lifetime).await?);
        let token = Some(("x-aws-ec2-metadata-token", &*token));
        let path = "/latest/meta-data/iam/security-credentials/";
        let role = text(&send(&pool, "GET", path, token).await?);
        let role = role.lines().next().unwrap_or_default().to_owned();
        ask(&pool, "GET", &format!("{path}{role}"), token).await
    }

    fn variable(&self, name: &str) -> Option<String> {
        (self.environment)(name).filter(|value| !value.is_empty())
    }
}

impl Endpoint {
    fn of_metadata(text: &str) -> Option<Self> {
        let uri: http::Uri = text.parse().ok()?;
        let host = uri.host()?.trim_start_matches('[').trim_end_matches(']').to_owned();
        (uri.scheme_str() == Some("http")).then(|| Self {
            is_encrypted: false,
            host,
            port: uri.port_u16().unwrap_or(80),
        })
    }
}

fn plain(host: &str) -> Endpoint {
    Endpoint { is_encrypted: false, host: host.to_owned(), port: 80 }
}

async fn send(
    pool: &Pool,
    method: &str,
    path: &str,
    header: Option<(&str, &str)>,
) -> Result<Answer, Failure> {
    let mut request = Request::builder().method(method).uri(path).header("host", pool.authority());
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(Bytes::new()));
    let request = request.map_err(|error| none_found(&format!("they cannot be asked for: {error}")))?;
    let answer = pool.send(request, &AtomicBool::new(false)).await.map_err(|lost| none_found(&lost.why))?;
    match answer.status {
        200 => Ok(answer),
        status => Err(none_found(&format!("{} answered HTTP status {status}", pool.authority()))),
    }
}

async fn ask(pool: &Pool, method: &str, path: &str, header: Option<(&str, &str)>) -> Result<Value, Failure> {
    let answer = send(pool, method, path, header).await?;
    serde_json::from_slice(&answer.body).map_err(|_| none_found("what was answered is not JSON"))
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).trim().to_owned()
}

/// What agents and the metadata service answer.
fn parse(told: &Value) -> Result<Known, Failure> {
    let field = |name: &str| told[name].as_str().filter(|value| !value.is_empty()).map(str::to_owned);
    let (Some(access_key_id), Some(secret_access_key)) = (field("AccessKeyId"), field("SecretAccessKey"))
    else {
        let code = field("Code").unwrap_or_else(|| "no keys".to_owned());
        return Err(none_found(&format!("what was answered has {code}")));
    };
    let expires_at = field("Expiration").and_then(|moment| moment.parse::<jiff::Timestamp>().ok());
    let expires_at = expires_at.map(|moment| Timestamp::from_micros(moment.as_microsecond()));
    let early = i64::try_from(RENEWED_BEFORE.as_micros()).unwrap_or(0);
    Ok(Known {
        keys: Keys { access_key_id, secret_access_key, session_token: field("Token") },
        renew_at: expires_at.map(|moment| Timestamp::from_micros(moment.as_micros().saturating_sub(early))),
        expires_at,
    })
}

fn read(file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file).map_err(|error| {
        wrong(&format!("AWS credentials cannot be read from {}: {error}; make it readable", file.display()))
    })
}

/// The lines `name = value` of a section of a file; none where there is no such section.
fn read_section(file: &Path, section: &str) -> Result<Option<Vec<(String, String)>>, Failure> {
    let text = read(file)?;
    let mut found: Option<Vec<(String, String)>> = None;
    let mut is_inside = false;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            is_inside = name.split_whitespace().eq(section.split_whitespace());
            if is_inside {
                found.get_or_insert_default();
            }
        } else if is_inside
            && !line.starts_with(['#', ';'])
            && let Some((name, value)) = line.split_once('=')
        {
            found.get_or_insert_default().push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    Ok(found)
}

fn wrong(message: &str) -> Failure {
    Failure::refused(ErrorKind::Misconfigured, message)
}

fn none_found(why: &str) -> Failure {
    wrong(&format!(
        "no AWS credentials: neither in the environment nor in a profile, and neither a container's agent nor the metadata \
         service of EC2 has any ({why}); {REMEDY}"
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex as Lock};

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_440_938_160_000_000);

    fn provider(variables: &[(&str, &str)]) -> Provider {
        let variables: HashMap<String, String> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Provider::new(Box::new(move |name| variables.get(name).cloned()), None, false)
    }

    async fn id(provider: &Provider) -> String {
        provider.keys(NOW).await.unwrap().access_key_id
    }

    async fn refused(variables: &[(&str, &str)]) -> String {
        let failure = provider(variables).keys(NOW).await.unwrap_err();
        assert_eq!(failure.kind, ErrorKind::Misconfigured);
        failure.to_string()
    }

    /// A folder for one test, gone when it ends.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder =
                std::env::temp_dir().join(format!("onlyonce-credentials-{name}-{}", std::process::id()));
            std::fs::create_dir_all(folder.join(".aws")).unwrap();
            Self(folder)
        }

        fn write(&self, file: &str, text: &str) {
            std::fs::write(self.0.join(file), text).unwrap();
        }

        fn path(&self) -> &str {
            self.0.to_str().unwrap()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// An agent that answers each path, and notes what it was asked with.
    fn agent(answers: &'static [(&'static str, &'static str)]) -> (u16, Arc<Lock<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Lock::new(Vec::new()));
        let noted = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let (mut head, mut line) = (String::new(), String::new());
                while stream.read_line(&mut line).is_ok_and(|read| read > 2) {
                    head.push_str(&line);
                    line.clear();
                }
                let answer = answers.iter().find(|(path, _)| head.starts_with(&format!("{path} HTTP/1.1")));
                let (status, body) = answer.map_or((404, ""), |(_, body)| (200, *body));
                noted.lock().unwrap().push(head);
                let length = body.len();
                let _ = write!(
                    stream.get_mut(),
                    "HTTP/1.1 {status} x\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
                );
            }
        });
        (port, asked)
    }

    #[tokio::test]
    async fn the_environment_comes_first() {
        let folder = Folder::new("environment");
        folder.write(".aws/credentials", "[default]\naws_access_key_id = file\naws_secret_access_key = x\n");
        let home = ("HOME", folder.path());
        let environment = provider(&[home, ("AWS_ACCESS_KEY_ID", "one"), ("AWS_SECRET_ACCESS_KEY", "two")]);
        assert_eq!(id(&environment).await, "one");
        assert_eq!(id(&provider(&[home])).await, "file");
        assert!(refused(&[home, ("AWS_ACCESS_KEY_ID", "one")]).await.contains("set both, or neither"));
        let shown = format!("{:?}", environment.keys(NOW).await.unwrap());
        assert!(shown.contains("one") && !shown.contains("two"), "{shown}");
    }

    #[tokio::test]
    async fn a_profile_is_read_and_what_it_cannot_do_is_refused_by_name() {
        let folder = Folder::new("profile");
        folder.write(
            ".aws/credentials",
            "# keys\n[default]\naws_access_key_id=usual\naws_secret_access_key=x\n[ pay ]\n aws_access_key_id = pay\n\
             aws_secret_access_key = a=b\naws_session_token = t\n",
        );
        folder.write(".aws/config", "[profile role]\nrole_arn = arn:x\n[profile keys]\naws_access_key_id = c\naws_secret_access_key = d\n");
        let home = ("HOME", folder.path());
        let pay = provider(&[home, ("AWS_PROFILE", "pay")]).keys(NOW).await.unwrap();
        assert_eq!((&*pay.access_key_id, &*pay.secret_access_key), ("pay", "a=b"));
        assert_eq!(pay.session_token.as_deref(), Some("t"));
        assert_eq!(id(&provider(&[home, ("AWS_PROFILE", "keys")])).await, "c");
        assert!(refused(&[home, ("AWS_PROFILE", "role")]).await.contains("has role_arn, which this release"));
        assert!(refused(&[home, ("AWS_PROFILE", "none")]).await.contains("AWS_PROFILE is \"none\""));
        let web = [("HOME", "/nonexistent"), ("AWS_WEB_IDENTITY_TOKEN_FILE", "/token")];
        assert!(refused(&web).await.contains("use EKS Pod Identity"));
    }

    #[tokio::test]
    async fn keys_of_a_container_are_fetched_and_renewed_before_they_expire() {
        const EXPIRING: &str =
            r#"{"AccessKeyId":"c","SecretAccessKey":"s","Token":"t","Expiration":"2015-08-30T13:36:00Z"}"#;
        let (port, asked) = agent(&[("GET /creds", EXPIRING)]);
        let uri = format!("http://127.0.0.1:{port}/creds");
        let variables =
            [("AWS_CONTAINER_CREDENTIALS_FULL_URI", &*uri), ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "secret")];
        let provider = provider(&variables);
        for (minutes, times) in [(0, 1), (54, 1), (56, 2), (56, 3)] {
            let now = NOW.plus(Duration::from_secs(60 * minutes));
            assert_eq!(provider.keys(now).await.unwrap().session_token.as_deref(), Some("t"));
            assert_eq!(asked.lock().unwrap().len(), times, "after {minutes} minutes");
        }
        assert!(asked.lock().unwrap()[0].to_ascii_lowercase().contains("authorization: secret"));
        let elsewhere = [("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://10.0.0.1/creds")];
        assert!(refused(&elsewhere).await.contains("not encrypted"));
        let (port, _) = agent(&[]);
        let nothing = format!("http://127.0.0.1:{port}/creds");
        let told = refused(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &nothing)]).await;
        assert!(told.contains("answered HTTP status 404"), "{told}");
    }

    #[tokio::test]
    async fn keys_that_cannot_be_renewed_are_used_until_they_expire() {
        let expires_at = Some(NOW.plus(Duration::from_secs(60)));
        let keys = Keys { access_key_id: "old".into(), secret_access_key: "s".into(), session_token: None };
        let provider = provider(&[("AWS_EC2_METADATA_DISABLED", "true")]);
        *provider.known.lock().await = Some(Known { keys, renew_at: Some(NOW), expires_at });
        assert_eq!(id(&provider).await, "old");
        let later = NOW.plus(Duration::from_secs(61));
        assert!(provider.keys(later).await.is_err(), "they have expired");
    }

    #[tokio::test]
    async fn the_role_of_an_instance_is_asked_for_with_a_token() {
        const ROLE: &str = "/latest/meta-data/iam/security-credentials/";
        let (port, asked) = agent(&[
            ("PUT /latest/api/token", "t0ken"),
            ("GET /latest/meta-data/iam/security-credentials/", "payments\n"),
            (
                "GET /latest/meta-data/iam/security-credentials/payments",
                r#"{"Code":"Success","AccessKeyId":"i","SecretAccessKey":"s","Token":"t"}"#,
            ),
        ]);
        let endpoint = format!("http://127.0.0.1:{port}");
        let provider = provider(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &endpoint)]);
        assert_eq!(id(&provider).await, "i");
        let asked = asked.lock().unwrap().clone();
        assert_eq!(asked.len(), 3);
        assert!(asked[1..].iter().all(|head| head.contains(ROLE) && head.contains("t0ken")), "{asked:?}");
        assert!(refused(&[("AWS_EC2_METADATA_DISABLED", "true")]).await.contains("no AWS credentials"));
    }

    #[tokio::test]
    async fn an_emulator_needs_no_credentials() {
        let provider = Provider::new(Box::new(|_| None), None, true);
        assert_eq!(id(&provider).await, "onlyonce");
    }
}
