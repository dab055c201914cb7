//! The current routes, each with its own layer and service; rebuilt by a reload.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use http::Method;
use onlyonce::{Engine, Onlyonce, Policy, Service};
use tower_layer::Layer;

use super::forward::Forward;
use super::phase::Ending;
use super::pool::Pool;
use super::route;
use super::tunnel::Tunnels;
use crate::caller::Callers;
use crate::config::{self, Config, Pattern, Upstream};
use crate::published::Published;
use crate::tls::Connector;
use crate::webhook::Webhooks;

/// Everything that depends on the settings. A reload makes a new one; a request keeps the one it began with.
pub(crate) struct Site {
    pub(crate) callers: Callers,
    routes: Vec<Route>,
    default: Route,
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
        before: Option<&Self>,
    ) -> Result<Self> {
        let connector = Connector::new(config)?;
        let mut pools = HashMap::new();
        let mut pool = |upstream: &Upstream| -> Arc<Pool> {
            let is_clear = upstream.uri.scheme_str() == Some("http");
            let old = before.filter(|_| is_clear).and_then(|site| site.pools.get(upstream));
            let new = || {
                old.cloned().unwrap_or_else(|| Pool::new(upstream.clone(), connector.clone(), ending.clone()))
            };
            pools.entry(upstream.clone()).or_insert_with(new).clone()
        };
        let onlyonce = Onlyonce::on(engine.clone()).for_service(&config.service).with_verified();
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
            published,
            webhooks: webhooks.clone(),
            pools,
        })
    }

    /// The first route that matches, or the default.
    pub(crate) fn route(&self, method: &Method, path: &str) -> &Route {
        let is_about = |route: &&Route| {
            route.pattern.as_ref().is_some_and(|pattern| route::matches(pattern, method, path))
        };
        self.routes.iter().find(is_about).unwrap_or(&self.default)
    }

    /// The route of this name, or the default.
    pub(crate) fn named(&self, name: &str) -> &Route {
        let is_named = |route: &&Route| route.name.as_ref().is_some_and(|known| &*known.0 == name);
        self.routes.iter().find(is_named).unwrap_or(&self.default)
    }
}
