//! Settings of the layer.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use onlyonce_core::policy::{Fault, Faults, Policy};
use onlyonce_core::scope::{Part, Scope, Source};
use onlyonce_store::Store;

use crate::counts::ByRoute;
use crate::engine::Engine;
use crate::service::Service;
use crate::verified::Verified;

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
    pub(crate) service: Arc<str>,
    pub(crate) caller: Option<CallerOf>,
    /// Whether what stands in [`Verified`] is believed.
    pub(crate) believes_verified: bool,
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
    /// their `Authorization` header.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::on(Engine::new(store))
    }

    /// The same on an engine that others use too.
    pub fn on(engine: Arc<Engine>) -> Self {
        let settings = Settings {
            engine,
            policy: Policy::default(),
            service: "".into(),
            caller: None,
            believes_verified: false,
            counts: Arc::default(),
        };
        Self { settings: Arc::new(settings) }
    }

    /// With this policy; every fault in it is reported at once.
    pub fn with_policy(mut self, policy: Policy) -> Result<Self, Faults> {
        policy.check()?;
        let settings = Arc::make_mut(&mut self.settings);
        if settings.caller.is_none() && !settings.believes_verified {
            check_sources(&policy)?;
        }
        settings.policy = policy;
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
