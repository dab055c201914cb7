//! The service behind the gateways: HTTP/1.1 over kept connections, by hand, so that it can break them where it likes.
//!
//! It writes into a key's history what it was given, what it did and how it ended, each before anybody can hear of it.

use std::io::BufReader;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use onlyonce_testkit::history::{Meaning, Said, What};
use onlyonce_testkit::random::Random;
use serde_json::json;

use crate::application::{Application, End, Outcome, Payment, Script};
use crate::behaviour::Behaviour;
use crate::call::{Call, Then, send};
use crate::kind::Kind;
use crate::ledger::{Arrival, Ledger};
use crate::run::{Run, Seen, Subject};
use crate::settings::{DEADLINE, PROBE, RESPONSE_BYTES_MAX};

/// A client that misuses a key marks its request with this: the service must never see it.
pub(crate) const MISUSE: &str = "x-misuse";
/// The number of a client's request.
pub(crate) const REQUEST: &str = "x-request";
/// After how many of a hundred answers the connection is closed without notice.
const CLOSES_PERCENT: u64 = 4;
/// Of a hundred questions so many are not answered, or with a status that counts for nothing.
const PROBE_FAILS_PERCENT: u64 = 20;
/// Of a hundred questions so many are answered with "unknown".
const PROBE_UNSURE_PERCENT: u64 = 10;
/// How many customers a caller has: messages are in order for each.
const CUSTOMERS: usize = 8;
/// Of a hundred transactions so many lock the record first.
const HOLDS_PERCENT: u64 = 20;
/// Of a hundred plain transactions so many lose their session before COMMIT, or its answer.
const SESSION_LOST_PERCENT: u64 = 12;
/// Of a hundred that are slow after their COMMIT so many never answer in time.
const HANGS_PERCENT: u64 = 25;

pub(crate) struct Service {
    run: Arc<Run>,
    pub(crate) ledger: Ledger,
    pub(crate) application: Application,
    under_way: AtomicUsize,
    probes: AtomicU64,
}

/// An attempt, as its request says.
struct Work {
    subject: Arc<Subject>,
    request: u32,
    token: u32,
    handle: String,
    amount: String,
}

impl Service {
    /// Listens on a free port, which is returned with it.
    pub(crate) fn start(
        run: &Arc<Run>,
        ledger: Ledger,
        application: Application,
    ) -> Result<(Arc<Self>, u16)> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("no port is free")?;
        let port = listener.local_addr()?.port();
        let service = Arc::new(Self {
            run: run.clone(),
            ledger,
            application,
            under_way: AtomicUsize::new(0),
            probes: AtomicU64::new(0),
        });
        let accepting = service.clone();
        thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let Ok(stream) = stream else { continue };
                let service = accepting.clone();
                thread::spawn(move || service.serve(number as u64, &stream));
            }
        });
        Ok((service, port))
    }

    /// Whether no request is being served.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) == 0
    }

    fn serve(&self, number: u64, stream: &TcpStream) {
        let random = self.run.random("connection", number);
        let _ = stream.set_nodelay(true);
        let mut reader = BufReader::new(stream);
        while let Some(call) = Call::read(&mut reader) {
            self.under_way.fetch_add(1, Ordering::SeqCst);
            let then = self.answer(&call, stream);
            self.under_way.fetch_sub(1, Ordering::SeqCst);
            if then == Then::Close || (self.run.is_faulty() && random.percent(CLOSES_PERCENT)) {
                break;
            }
        }
        let _ = stream.shutdown(Shutdown::Both);
    }

    fn answer(&self, call: &Call, stream: &TcpStream) -> Then {
        if call.path.starts_with(PROBE) {
            return self.probe(call, stream);
        }
        let Some(work) = self.work(call) else { return Then::Close };
        let Work { subject, request, token, .. } = &work;
        let random = self.run.random("call", (subject.number as u64) << 20 | subject.calls() as u64);
        self.run.arrived(&work.handle, subject);
        self.run.note(subject, What::Began { request: *request, token: *token });
        let behaviour = if self.run.is_faulty() { Behaviour::of(&random) } else { Behaviour::Plain };
        self.run.tally().behaviour(behaviour);
        if subject.kind == Kind::Keyed {
            match self.ledger.arrive(subject) {
                Arrival::First => {}
                Arrival::Busy => {
                    let said = Said { status: 409, body: format!("key {} is under way", subject.key) };
                    return self.say(&work, Meaning::DidNotRun, &said, stream);
                }
                Arrival::Known(said) => return self.say(&work, Meaning::Completed, &said, stream),
            }
        }
        match subject.kind {
            Kind::Local => self.transact(&work, behaviour, &random, stream),
            Kind::Opaque | Kind::Keyed | Kind::Queryable | Kind::Brief => {
                self.act(&work, behaviour, &random, stream)
            }
        }
    }

    /// Whether the work of an attempt took effect. While there are faults it sometimes fails, and sometimes cannot say.
    fn probe(&self, call: &Call, stream: &TcpStream) -> Then {
        let handle =
            call.path.split(['?', '&']).find_map(|part| part.strip_prefix("token=")).unwrap_or_default();
        let random = self.run.random("probe", self.probes.fetch_add(1, Ordering::SeqCst));
        if self.run.is_faulty() && random.percent(PROBE_FAILS_PERCENT) {
            return match random.percent(50) {
                true => Then::Close,
                false => send(
                    stream,
                    &Said { status: 503, body: "{\"verdict\":\"did-not-happen\"}".to_owned() },
                    None,
                ),
            };
        }
        let body = match self.run.attempt(handle) {
            _ if self.run.is_faulty() && random.percent(PROBE_UNSURE_PERCENT) => {
                json!({ "verdict": "unknown" })
            }
            Some(Seen { said: Some(said), .. }) if said.body.len() >= RESPONSE_BYTES_MAX => {
                json!({ "verdict": "happened" })
            }
            Some(Seen { said: Some(said), .. }) => json!({
                "verdict": "happened",
                "response": {
                    "status": said.status,
                    "headers": { "content-type": "application/json" },
                    "body": said.body,
                },
            }),
            Some(Seen { said: None, .. }) | None => json!({ "verdict": "did-not-happen" }),
        };
        send(stream, &Said { status: 200, body: body.to_string() }, None)
    }

    /// Which attempt of which key this is. A request that should never have reached the service is a broken promise.
    fn work(&self, call: &Call) -> Option<Work> {
        let header = |name| call.header(name);
        let caller = header("authorization").strip_prefix("Bearer ").unwrap_or_default();
        let key = header("idempotency-key").trim_matches('"');
        let subject = self.run.subject(caller, key);
        let subject = subject.filter(|subject| call.path == format!("/{}", subject.kind.name()));
        let handle = header("onlyonce-token");
        let is_misuse = !header(MISUSE).is_empty();
        match (subject, header(REQUEST).parse()) {
            (Some(subject), Ok(request)) if !is_misuse && handle.starts_with(&subject.id) => {
                let token = self.run.token(handle);
                let amount =
                    call.body.trim_end_matches('}').rsplit(':').next().unwrap_or_default().to_owned();
                Some(Work { subject, request, token, handle: handle.to_owned(), amount })
            }
            _ => {
                let Call { path, headers, body } = call;
                self.run.wrong(format!("the service was sent {path} {headers:?} {body:?}"));
                None
            }
        }
    }

    fn act(&self, work: &Work, behaviour: Behaviour, random: &Random, stream: &TcpStream) -> Then {
        let (before, after) = behaviour.pauses(random);
        thread::sleep(before);
        let told = behaviour.status(random).map(|status| work.said(status, behaviour, None));
        if !behaviour.does_it() {
            return self.decline(work, told, stream);
        }
        let charge = self.ledger.book(&work.subject, work.token);
        let done = work.said(201, behaviour, Some(charge));
        self.run.note(&work.subject, What::Executed { token: work.token, said: done.clone() });
        self.run.took_effect(&work.handle, &done);
        self.ledger.remember(&work.subject, &done);
        thread::sleep(after);
        self.come_back(work, behaviour, told, &done, stream)
    }

    /// Local work: its transaction completes the key.
    fn transact(&self, work: &Work, behaviour: Behaviour, random: &Random, stream: &TcpStream) -> Then {
        let (before, after) = behaviour.pauses(random);
        let told = behaviour.status(random).map(|status| work.said(status, behaviour, None));
        let script = script(behaviour, before, random, self.run.is_faulty());
        if script.pause.is_zero() {
            thread::sleep(before);
        }
        if behaviour == Behaviour::Declined {
            return self.decline(work, told, stream);
        }
        let done = work.said(201, behaviour, Some(work.token as usize));
        let payment = Payment {
            handle: &work.handle,
            subject: work.subject.number,
            token: work.token,
            customer: format!("{}-{}", work.subject.caller, work.subject.number % CUSTOMERS),
            said: &done,
            is_kept: behaviour != Behaviour::Large,
        };
        match self.application.pay(&payment, script) {
            Outcome::Committed => {
                let hangs = behaviour == Behaviour::SlowAfter && random.percent(HANGS_PERCENT);
                thread::sleep(if hangs { DEADLINE + 2 * after } else { after });
                self.come_back(work, behaviour, told, &done, stream)
            }
            Outcome::RolledBack if !behaviour.does_it() => self.decline(work, told, stream),
            Outcome::RolledBack | Outcome::Superseded => {
                self.say(work, Meaning::DidNotRun, &work.said(500, behaviour, None), stream)
            }
            Outcome::InDoubt => self.break_off(work),
        }
    }

    /// The work is done.
    fn come_back(
        &self,
        work: &Work,
        behaviour: Behaviour,
        told: Option<Said>,
        done: &Said,
        stream: &TcpStream,
    ) -> Then {
        match (behaviour, told) {
            (Behaviour::BrokeAfter, _) => self.break_off(work),
            (Behaviour::BrokeWithin, _) => {
                let then = self.break_off(work);
                send(stream, done, Some(done.body.len() / 2));
                then
            }
            (_, Some(doubtful)) => self.say(work, Meaning::Doubt, &doubtful, stream),
            (_, None) => self.say(work, Meaning::Completed, done, stream),
        }
    }

    /// Nothing is done.
    fn decline(&self, work: &Work, told: Option<Said>, stream: &TcpStream) -> Then {
        let Some(said) = told else {
            self.ledger.forget(&work.subject);
            return self.break_off(work);
        };
        let meaning = match said.status {
            402 => Meaning::Completed,
            429 | 500 | 503 => Meaning::DidNotRun,
            _ => Meaning::Doubt,
        };
        match meaning {
            Meaning::Completed => self.ledger.remember(&work.subject, &said),
            Meaning::DidNotRun | Meaning::Doubt => self.ledger.forget(&work.subject),
        }
        self.say(work, meaning, &said, stream)
    }

    fn say(&self, work: &Work, meaning: Meaning, said: &Said, stream: &TcpStream) -> Then {
        let ended = What::Ended { token: work.token, meaning, said: Some(said.clone()) };
        self.run.note(&work.subject, ended);
        send(stream, said, None)
    }

    fn break_off(&self, work: &Work) -> Then {
        let ended = What::Ended { token: work.token, meaning: Meaning::Doubt, said: None };
        self.run.note(&work.subject, ended);
        Then::Close
    }
}

/// How the transaction of local work goes.
fn script(behaviour: Behaviour, before: Duration, random: &Random, is_faulty: bool) -> Script {
    let end = match behaviour {
        Behaviour::BrokeBefore => {
            random.pick(&[End::DiesAfterRow, End::DiesAfterMessage, End::DiesAfterCompletion])
        }
        Behaviour::BrokeAfter if random.percent(50) => End::DiesInCommit,
        Behaviour::Plain | Behaviour::Long if is_faulty && random.percent(SESSION_LOST_PERCENT) => {
            random.pick(&[End::LosesItsSession, End::HearsNothing])
        }
        Behaviour::Failed | Behaviour::Throttled | Behaviour::Doubtful | Behaviour::Declined => {
            End::RollsBack
        }
        Behaviour::Plain
        | Behaviour::SlowBefore
        | Behaviour::SlowAfter
        | Behaviour::Long
        | Behaviour::PastDeadline
        | Behaviour::Large
        | Behaviour::DoubtfulDone
        | Behaviour::BrokeAfter
        | Behaviour::BrokeWithin => End::Commits,
    };
    let pause = if random.percent(50) { before } else { Duration::ZERO };
    Script { holds: random.percent(HOLDS_PERCENT), pause, end }
}

impl Work {
    /// Every answer is different: it names the caller, the key and the attempt.
    fn said(&self, status: u16, behaviour: Behaviour, charge: Option<usize>) -> Said {
        let Self { subject, token, amount, .. } = self;
        let charge = charge.map_or_else(|| "no charge".to_owned(), |charge| format!("charge {charge}"));
        let mut body = format!(
            r#"{{"caller":"{}","key":"{}","amount":{amount},"says":"{charge} by token {token}"}}"#,
            subject.caller, subject.key
        );
        if behaviour == Behaviour::Large && status == 201 {
            body.push_str(&" ".repeat(RESPONSE_BYTES_MAX));
        }
        Said { status, body }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::store::Store;

    /// A service after the faults, which behaves plainly, and a key of this kind.
    fn calm(kind: Kind) -> (Arc<Run>, Arc<Service>, u16, Arc<Subject>) {
        let run = Run::new(7, Store::Postgres);
        run.end_faults();
        let folder =
            std::env::temp_dir().join(format!("onlyonce-chaos-{}-{}", std::process::id(), kind.name()));
        let ledger = Ledger::open(&folder).unwrap();
        std::fs::remove_file(&folder).unwrap();
        let (service, port) = Service::start(&run, ledger, Application::new(&run, 1).unwrap()).unwrap();
        let subject = std::iter::repeat_with(|| run.new_subject()).find(|subject| subject.kind == kind);
        (run, service, port, subject.unwrap())
    }

    /// What it answers to one attempt; empty where it breaks off.
    fn call(port: u16, subject: &Subject, handle: &str, extra: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let body = r#"{"order":"x","amount":1}"#;
        let (path, caller, key) = (subject.kind.name(), subject.caller, &subject.key);
        write!(
            stream,
            "POST /{path} HTTP/1.1\r\nAuthorization: Bearer {caller}\r\nIdempotency-Key: {key}\r\nOnlyonce-Token: {handle}\r\n\
             X-Request: 1\r\n{extra}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        // It keeps the connection: what is asked next has to end it.
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn charges(service: &Service, subject: &Subject) -> usize {
        service.ledger.charges().get(&subject.number).copied().unwrap_or(0)
    }

    #[test]
    fn opaque_work_is_done_each_time_it_is_asked_for() {
        let (run, service, port, subject) = calm(Kind::Opaque);
        let answers = ["a", "b"].map(|token| call(port, &subject, &format!("{}.{token}", subject.id), ""));
        assert!(answers[0].starts_with("HTTP/1.1 201") && answers[0] != answers[1], "{answers:?}");
        assert_eq!((charges(&service, &subject), run.wrongs().len()), (2, 0));
        assert!(service.is_idle());
    }

    #[test]
    fn keyed_work_is_done_once_and_answered_alike() {
        let (_, service, port, subject) = calm(Kind::Keyed);
        let [first, second] =
            ["a", "b"].map(|token| call(port, &subject, &format!("{}.{token}", subject.id), ""));
        assert_eq!(first, second);
        assert_eq!(charges(&service, &subject), 1);
    }

    #[test]
    fn what_a_gateway_should_have_refused_is_told_on() {
        let (run, service, port, subject) = calm(Kind::Queryable);
        let handle = format!("{}.a", subject.id);
        assert_eq!(call(port, &subject, &handle, "X-Misuse: 1\r\n"), "");
        assert_eq!(call(port, &subject, "", ""), "");
        // The handle of another record.
        assert_eq!(call(port, &subject, &handle.replace(|digit| digit != '.', "0"), ""), "");
        assert_eq!((charges(&service, &subject), run.wrongs().len()), (0, 3));
    }
}
