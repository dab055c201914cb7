//! The bank behind the sample service. It is outside the gateway, so its ledger shows what really happened.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep;

/// Charges cards and keeps a ledger. It does not deduplicate anything: a second call is a second charge.
#[derive(Debug)]
pub(crate) struct Bank {
    slow: Duration,
    ledger: Mutex<Ledger>,
    /// A call with a held card has arrived.
    pub(crate) arrived: Notify,
    /// Lets one call with a held card go on.
    pub(crate) go_on: Notify,
    /// A held card has been charged.
    pub(crate) charged_one: Notify,
}

#[derive(Debug, Default)]
struct Ledger {
    charges: Vec<Charge>,
    /// Orders that were refused once because the bank was closed.
    turned_away: HashSet<String>,
}

/// Money that moved.
#[derive(Clone, Debug)]
pub(crate) struct Charge {
    pub(crate) number: usize,
    pub(crate) payment: Payment,
    pub(crate) at: Instant,
}

/// What is to be charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Payment {
    pub(crate) order: String,
    pub(crate) card: Card,
    pub(crate) amount: u64,
    /// The attempt that made it, as the gateway named it to the service; none where the service was called directly.
    pub(crate) token: Option<String>,
}

/// Cards that misbehave, each in its own way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Card {
    /// Charged at once.
    Plain,
    /// The bank takes its time.
    Slow,
    /// The bank waits until it is told to go on.
    Held,
    /// Charged, and then the service dies.
    Crashing,
    /// The bank is closed at the first call.
    Closed,
}

/// The bank is closed: nothing was charged.
#[derive(Debug)]
pub(crate) struct Closed;

impl Card {
    const ALL: [Self; 5] = [Self::Plain, Self::Slow, Self::Held, Self::Crashing, Self::Closed];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Slow => "slow",
            Self::Held => "held",
            Self::Crashing => "crashing",
            Self::Closed => "closed",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|card| card.name() == name)
    }
}

impl Bank {
    pub(crate) fn new(slow: Duration) -> Self {
        Self {
            slow,
            ledger: Mutex::default(),
            arrived: Notify::new(),
            go_on: Notify::new(),
            charged_one: Notify::new(),
        }
    }

    pub(crate) async fn charge(&self, payment: Payment) -> Result<Charge, Closed> {
        match payment.card {
            Card::Plain | Card::Crashing => {}
            Card::Slow => sleep(self.slow).await,
            Card::Held => {
                self.arrived.notify_one();
                self.go_on.notified().await;
            }
            Card::Closed => self.open(&payment.order)?,
        }
        let is_held = payment.card == Card::Held;
        let charge = self.write(payment);
        if is_held {
            self.charged_one.notify_one();
        }
        Ok(charge)
    }

    /// How often an order was charged.
    pub(crate) fn charged(&self, order: &str) -> usize {
        self.charges().iter().filter(|charge| charge.payment.order == order).count()
    }

    /// The charge that an attempt made.
    pub(crate) fn charge_of(&self, token: &str) -> Option<Charge> {
        self.charges().into_iter().find(|charge| charge.payment.token.as_deref() == Some(token))
    }

    pub(crate) fn charges(&self) -> Vec<Charge> {
        self.ledger().charges.clone()
    }

    fn open(&self, order: &str) -> Result<(), Closed> {
        if self.ledger().turned_away.insert(order.to_owned()) { Err(Closed) } else { Ok(()) }
    }

    fn write(&self, payment: Payment) -> Charge {
        let charges = &mut self.ledger().charges;
        let charge = Charge { number: charges.len() + 1, payment, at: Instant::now() };
        charges.push(charge.clone());
        charge
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
