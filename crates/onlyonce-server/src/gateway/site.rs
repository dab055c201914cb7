//! The current routes, each with its own layer and service; rebuilt by a reload.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use http::Method;
use onlyonce::accepted::{Running, Work};
use onlyonce::{Engine, Onlyonce, Policy, Service};
use tower_layer::Layer;

use super::connections::Outgoing;
use super::forward::Forward;
use super::phase::Ending;
use super::pool::Pool;
use super::tunnel::Tunnels;
use super::{lenient, route};
use crate::caller::Callers;
use crate::config::{self, AmbiguousPaths, Config, PathCase, Pattern, Upstream};
use crate::published::Published;
use crate::tls::Connector;
use crate::webhook::Webhooks;

/// Everything that depends on the settings. A reload makes a new one; a request keeps the one it began with.
pub(crate) struct Site {
    pub(crate) callers: Callers,
    routes: Vec<Route>,
    default: Route,
    path_case: PathCase,
    ambiguous_paths: AmbiguousPaths,
    pub(crate) published: Published,
    pub(crate) webhooks: Arc<Webhooks>,
    pools: HashMap<Upstream, Arc<Pool>>,
}

pub(crate) struct Route {
    /// `None` for the default route: there the method and path are the name.
    pub(crate) name: Option<onlyonce::Route>,
    pub(crate) policy: Policy,
    pub(crate) service: Service<Forward>,
    pattern: Option<Pattern>,
}

impl Site {
    /// From these settings. Connections to services that are still configured are taken over from the site `before`, unless
    /// the CAs may have changed.
    pub(crate) fn new(
        config: &Config,
        engine: &Arc<Engine>,
        webhooks: &Arc<Webhooks>,
        ending: &Ending,
        outgoing: &Outgoing,
        before: Option<&Self>,
    ) -> Result<Self> {
        let connector = Connector::new(config)?;
        let mut pools = HashMap::new();
        let mut pool = |upstream: &Upstream| -> Arc<Pool> {
            let is_clear = upstream.uri.scheme_str() == Some("http");
            let old = before.filter(|_| is_clear).and_then(|site| site.pools.get(upstream));
            let new = || {
                old.cloned().unwrap_or_else(|| {
                    Pool::new(upstream.clone(), connector.clone(), ending.clone(), outgoing.clone())
                })
            };
            pools.entry(upstream.clone()).or_insert_with(new).clone()
        };
        let onlyonce = Onlyonce::on(engine.clone()).for_service(&config.service).with_verified();
        let onlyonce = onlyonce.with_limits(config.limits).context("limits")?;
        let mut made = |route: &config::Route| -> Result<Route> {
            let tunnels = Tunnels::new(ending.clone());
            let forward = Forward::new(route, pool(&route.upstream), tunnels, ending.clone());
            let onlyonce = onlyonce.clone().counted_as(&route.name).with_policy(route.policy.clone());
            let layer = onlyonce.with_context(|| format!("route \"{}\"", route.name))?.layer();
            Ok(Route {
                name: route.pattern.as_ref().map(|_| onlyonce::Route(route.name.clone())),
                policy: route.policy.clone(),
                service: layer.layer(forward),
                pattern: route.pattern.clone(),
            })
        };
        let routes = config.routes.iter().map(&mut made).collect::<Result<_>>()?;
        let default = made(&config.default)?;
        let published = Published::of(config);
        Ok(Self {
            callers: Callers::new(config)?,
            routes,
            default,
            path_case: config.path_case,
            ambiguous_paths: config.ambiguous_paths,
            published,
            webhooks: webhooks.clone(),
            pools,
        })
    }

    /// The first route that matches, or the default; none where a service may take the path for another route's, and such paths
    /// are refused.
    pub(crate) fn route(&self, method: &Method, path: &str) -> Option<&Route> {
        let found = self.first(|pattern| route::matches(pattern, method, path, self.path_case));
        let is_refused = match self.ambiguous_paths {
            AmbiguousPaths::Allow => false,
            AmbiguousPaths::Refuse => self.is_ambiguous(method, path, found),
        };
        (!is_refused).then(|| found.unwrap_or(&self.default))
    }

    /// Whether the path may be read as one of another route than this.
    fn is_ambiguous(&self, method: &Method, path: &str, found: Option<&Route>) -> bool {
        let Some(reading) = lenient::reading(path) else { return false };
        let read = self.first(|pattern| lenient::matches(pattern, method, &reading));
        match (found.and_then(|route| route.pattern.as_ref()), read.and_then(|route| route.pattern.as_ref()))
        {
            (None, None) => false,
            (Some(found), Some(read)) => !lenient::is_same(found, read),
            (Some(_), None) | (None, Some(_)) => true,
        }
    }

    fn first(&self, is_about: impl Fn(&Pattern) -> bool) -> Option<&Route> {
        self.routes.iter().find(|route| route.pattern.as_ref().is_some_and(&is_about))
    }

    /// Runs accepted work on the route that its request came in on; not where there is none of that name any more.
    pub(crate) fn run(&self, work: Work) -> Result<Running, Work> {
        let route = match work.route() {
            None => Some(&self.default),
            Some(name) => self.routes.iter().find(|route| route.is_named(name)),
        };
        match route {
            Some(route) => Ok(Box::pin(route.service.run(work))),
            None => Err(work),
        }
    }

    /// The route of this name, or the default.
    pub(crate) fn named(&self, name: &str) -> &Route {
        self.routes.iter().find(|route| route.is_named(name)).unwrap_or(&self.default)
    }
}

impl Route {
    fn is_named(&self, name: &str) -> bool {
        self.name.as_ref().is_some_and(|known| &*known.0 == name)
    }
}
