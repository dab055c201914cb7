//! Settings of the layer.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use onlyonce_core::limits::Limits;
use onlyonce_core::policy::{Accept, Fault, Faults, Policy};
#[cfg(any(feature = "_driver", feature = "sqlite"))]
use onlyonce_core::record::Effects;
use onlyonce_core::scope::{Part, Scope, Source};
use onlyonce_store::Store;
use onlyonce_store::promises::Clock;

use crate::counts::ByRoute;
use crate::engine::Engine;
use crate::service::Service;
use crate::verified::Verified;

/// A lease is at least so many times as long as nodes may differ about the store's time.
const LEASE_TIMES: u32 = 5;

/// Makes the writes of a service safe to retry. See the [crate's documentation](crate) for the rules.
///
/// Clones share one engine: give each group of routes its own policy and they still share the store, the cache and the
/// table of what runs here.
///
/// ```
/// use std::sync::Arc;
/// use axum::{Router, routing::post};
/// use onlyonce::{Effects, Onlyonce, Policy, store::memory::Memory};
///
/// let onlyonce = Onlyonce::new(Arc::new(Memory::new()));
/// let payments = Policy { effects: Effects::Keyed, required: vec![http::Method::POST], ..Policy::default() };
/// let app: Router = Router::new()
///     .route("/payments", post(|| async { "paid" }))
///     .layer(onlyonce.clone().with_policy(payments)?.layer())
///     .merge(Router::new().route("/notes", post(|| async { "noted" })).layer(onlyonce.layer()));
/// # Ok::<(), onlyonce::Faults>(())
/// ```
#[derive(Clone, Debug)]
pub struct Onlyonce {
    settings: Arc<Settings>,
}

/// What a service needs to know of its routes, and the engine they share: one pointer, since every request takes its own
/// to it, and each that all cores count on is waited for.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) engine: Arc<Engine>,
    pub(crate) policy: Policy,
    /// None where no limit is set.
    pub(crate) limits: Option<Limits>,
    pub(crate) service: Arc<str>,
    pub(crate) caller: Option<CallerOf>,
    /// Whether what stands in [`Verified`] is believed.
    pub(crate) believes_verified: bool,
    /// Whether handlers reserve and complete in their own transactions.
    #[cfg(any(feature = "_driver", feature = "sqlite"))]
    pub(crate) in_transaction: bool,
    pub(crate) counts: Arc<ByRoute>,
}

type CallerOf = Arc<dyn Fn(&Parts) -> Option<Caller> + Send + Sync>;

/// Who calls, as the service itself has found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller(String);

impl Caller {
    /// The caller named `name`: an account's id, never a secret, since operators read it.
    pub fn named(name: impl Into<String>) -> Self {
        Self(name.into())
    }
}

impl Onlyonce {
    /// Safe to retry on `store`, with the default policy: a key on POST, PATCH, PUT or DELETE, callers told apart by
    /// their `Authorization` header. `store` is any store, or an [`Arc`] of one.
    pub fn new<Kind>(store: impl IntoStore<Kind>) -> Self {
        Self::on(Engine::new(store.into_store()))
    }

    /// The same on an engine that others use too.
    pub fn on(engine: Arc<Engine>) -> Self {
        let settings = Settings {
            engine,
            policy: Policy::default(),
            limits: None,
            service: "".into(),
            caller: None,
            believes_verified: false,
            #[cfg(any(feature = "_driver", feature = "sqlite"))]
            in_transaction: false,
            counts: Arc::default(),
        };
        Self { settings: Arc::new(settings) }
    }

    /// With this policy; every fault in it is reported at once.
    pub fn with_policy(mut self, policy: Policy) -> Result<Self, Faults> {
        policy.check()?;
        #[cfg(any(feature = "_driver", feature = "sqlite"))]
        if self.settings.in_transaction {
            check_local(&policy)?;
        }
        check_accept(&policy, &**self.settings.engine.store())?;
        check_lease(&policy, &**self.settings.engine.store())?;
        let settings = Arc::make_mut(&mut self.settings);
        if settings.caller.is_none() && !settings.believes_verified {
            check_sources(&policy)?;
        }
        settings.policy = policy;
        Ok(self)
    }

    /// Within these limits; every fault in them is reported at once. All layers of one engine share what is counted: give
    /// them the same limits. [`Limits::keys_alive`] has the store count; see [`Engine::prepare_counting`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use onlyonce::{Limits, Onlyonce, store::memory::Memory};
    ///
    /// let limits = Limits { keys_per_second: Some(50), keys_per_second_total: Some(500), ..Limits::default() };
    /// let onlyonce = Onlyonce::new(Arc::new(Memory::new())).with_limits(limits)?;
    /// # Ok::<(), onlyonce::Faults>(())
    /// ```
    pub fn with_limits(mut self, limits: Limits) -> Result<Self, Faults> {
        limits.check()?;
        Arc::make_mut(&mut self.settings).limits = Some(limits).filter(Limits::is_any_set);
        Ok(self)
    }

    /// Handlers reserve and complete in their own transactions (`InTransaction`): one commit instead of two, for work
    /// that touches nothing else. The policy's effects must be local, and the store one that commits with rows.
    ///
    /// # Errors
    ///
    /// Where the policy or the store says otherwise.
    #[cfg(any(feature = "_driver", feature = "sqlite"))]
    pub fn in_transaction(mut self) -> Result<Self, Faults> {
        check_local(&self.settings.policy)?;
        if !self.settings.engine.store().promises().transactions {
            return Err(Faults(vec![Fault {
                path: "store",
                value: "memory".into(),
                remedy: "cannot commit together with rows; use PostgreSQL or SQLite, in the same database as the rows".into(),
            }]));
        }
        Arc::make_mut(&mut self.settings).in_transaction = true;
        Ok(self)
    }

    /// Names the service: part of every scope, so that services which share a store do not share keys.
    #[must_use]
    pub fn for_service(mut self, name: &str) -> Self {
        Arc::make_mut(&mut self.settings).service = name.into();
        self
    }

    /// Tells callers apart by what the service knows of them, instead of by `policy.scope`: say, the account that a
    /// middleware in front found and put into the request's extensions. `None` is a caller that is not known.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use onlyonce::{Caller, Onlyonce, store::memory::Memory};
    ///
    /// #[derive(Clone)]
    /// struct Account(String);
    ///
    /// let onlyonce = Onlyonce::new(Arc::new(Memory::new()))
    ///     .with_caller(|parts| parts.extensions.get::<Account>().map(|account| Caller::named(&account.0)));
    /// ```
    #[must_use]
    pub fn with_caller(mut self, caller: impl Fn(&Parts) -> Option<Caller> + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.settings).caller = Some(Arc::new(caller));
        self
    }

    /// Believes what somebody in front has verified and put into the request's extensions as [`Verified`]: then
    /// `policy.scope` may also name `trusted:`, `jwt:` and `certificate`. Call it before [`Onlyonce::with_policy`].
    #[must_use]
    pub fn with_verified(mut self) -> Self {
        Arc::make_mut(&mut self.settings).believes_verified = true;
        self
    }

    /// Counts every request as one of `route`, whatever its path: for a layer that covers one route only.
    #[must_use]
    pub fn counted_as(mut self, route: &str) -> Self {
        Arc::make_mut(&mut self.settings).counts = Arc::new(ByRoute::only(route.into()));
        self
    }

    /// The layer.
    pub fn layer(&self) -> Layer {
        Layer { settings: self.settings.clone() }
    }

    /// The engine underneath; [`Engine::idle`] is what to wait for before the process ends.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.settings.engine
    }
}

/// A request that is accepted is stored with its credentials: never in clear.
fn check_accept(policy: &Policy, store: &dyn Store) -> Result<(), Faults> {
    let value = match policy.accept {
        Accept::Allowed if !store.promises().encrypts => "allowed",
        Accept::Always if !store.promises().encrypts => "always",
        Accept::Never | Accept::Allowed | Accept::Always => return Ok(()),
    };
    let remedy =
        "stores requests with their credentials, and this store encrypts nothing; open it with a keyring";
    Err(Faults(vec![Fault { path: "policy.accept", value: value.into(), remedy: remedy.into() }]))
}

/// Where nodes are told the time, they differ about when a lease has lapsed: it must be long enough for that not to matter.
fn check_lease(policy: &Policy, store: &dyn Store) -> Result<(), Faults> {
    let Clock::Told { within } = store.promises().clock else { return Ok(()) };
    let least = LEASE_TIMES * within;
    if policy.lease >= least {
        return Ok(());
    }
    let remedy = format!(
        "is too short for this store, whose clock is known to {} ms; set at least {} ms",
        within.as_millis(),
        least.as_millis()
    );
    Err(Faults(vec![Fault { path: "policy.lease", value: format!("{:?}", policy.lease), remedy }]))
}

/// Only what commits with the record is done exactly once.
#[cfg(any(feature = "_driver", feature = "sqlite"))]
fn check_local(policy: &Policy) -> Result<(), Faults> {
    if policy.accept != Accept::Never {
        return Err(Faults(vec![Fault {
            path: "policy.accept",
            value: "allowed or always".into(),
            remedy: "is not possible if handlers reserve in their own transaction; set it to never".into(),
        }]));
    }
    if policy.effects == Effects::Local {
        return Ok(());
    }
    Err(Faults(vec![Fault {
        path: "policy.effects",
        value: policy.effects.as_str().into(),
        remedy: "must be local if handlers reserve in their own transaction; anything else would run again after a rollback"
            .into(),
    }]))
}

/// The layer alone sees headers and routes; what must be verified first is somebody else's to verify.
fn check_sources(policy: &Policy) -> Result<(), Faults> {
    let unverified = policy.scope.iter().filter(|source| source.needs_verifying());
    let faults: Vec<_> = unverified
        .map(|source| Fault {
            path: "policy.scope",
            value: source.to_string(),
            remedy: "must be verified before it is believed: run the gateway, or tell the layer the verified caller \
                     with Onlyonce::with_caller or with_verified before with_policy"
                .into(),
        })
        .collect();
    if faults.is_empty() { Ok(()) } else { Err(Faults(faults)) }
}

impl Settings {
    /// Whose request this is; none where that cannot be told.
    pub(crate) fn scope(&self, parts: &Parts, route: &str) -> Option<Scope> {
        if let Some(caller) = &self.caller {
            let caller = caller(parts)?;
            return Scope::of(&self.service, [Part::readable("caller", caller.0.as_bytes())]);
        }
        let mut is_missing = false;
        let found = self.policy.scope.iter().map_while(|source| {
            let value = match source {
                Source::Header(name) => single(parts, name),
                Source::Route => Some(route.as_bytes()),
                Source::Trusted(_) | Source::Jwt(_) | Source::Certificate => {
                    let verified = parts.extensions.get::<Verified>().filter(|_| self.believes_verified);
                    verified.and_then(|verified| verified.value(source))
                }
            };
            is_missing = value.is_none();
            value.map(|value| source.part(value))
        });
        let scope = Scope::of(&self.service, found);
        scope.filter(|_| !is_missing)
    }

    /// The scope of those who cannot be told apart, where the policy has one.
    pub(crate) fn shared(&self, route: &str) -> Scope {
        let has_route = self.policy.scope.contains(&Source::Route);
        let parts = has_route.then(|| Part::readable("route", route.as_bytes()));
        Scope::shared_with(&self.service, parts)
    }
}

/// The value of a header that comes exactly once: of two, nobody can say which one counts.
fn single<'a>(parts: &'a Parts, name: &http::HeaderName) -> Option<&'a [u8]> {
    let mut values = parts.headers.get_all(name).iter();
    let value = values.next()?.as_bytes();
    values.next().is_none().then_some(value)
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("policy", &self.policy).field("service", &self.service).finish()
    }
}

/// What [`Onlyonce::new`] takes: a store, or an [`Arc`] of one. `Kind` only tells these apart.
pub trait IntoStore<Kind> {
    /// The store, shared.
    fn into_store(self) -> Arc<dyn Store>;
}

/// The kinds of [`IntoStore`].
pub mod kind {
    /// A store itself.
    #[derive(Debug)]
    pub enum Owned {}
    /// An `Arc` of a store.
    #[derive(Debug)]
    pub enum Shared {}
    /// An `Arc` of any store.
    #[derive(Debug)]
    pub enum Any {}
}

impl<S: Store> IntoStore<kind::Owned> for S {
    fn into_store(self) -> Arc<dyn Store> {
        Arc::new(self)
    }
}

impl<S: Store> IntoStore<kind::Shared> for Arc<S> {
    fn into_store(self) -> Arc<dyn Store> {
        self
    }
}

impl IntoStore<kind::Any> for Arc<dyn Store> {
    fn into_store(self) -> Arc<dyn Store> {
        self
    }
}

/// It can stand wherever a layer can: `Router::layer(onlyonce)`.
impl<S> tower_layer::Layer<S> for Onlyonce {
    type Service = Service<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Service::new(inner, self.settings.clone())
    }
}

/// See [`Onlyonce::layer`].
#[derive(Clone, Debug)]
pub struct Layer {
    settings: Arc<Settings>,
}

impl<S> tower_layer::Layer<S> for Layer {
    type Service = Service<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Service::new(inner, self.settings.clone())
    }
}
