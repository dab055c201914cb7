//! Transactions on the writer's thread of the embedded store.

use onlyonce_core::machine::{self, Finish};
use onlyonce_core::outcome::Outcome;
use onlyonce_core::record::Revision;
use onlyonce_store::sqlite::Transaction;
use onlyonce_store::{Change, Swapped, failpoint};

use super::sealed::Sealed;
use super::{Completion, Error, Order};
use crate::attempt::Attempt;
use crate::in_transaction::{Begun, InTransaction, OpenAttempt};

impl Sealed for &Transaction<'_> {}

impl super::Transaction for &Transaction<'_> {
    type Done<T: Send + 'static> = Result<T, Error>;

    fn carry_out<T: Send + 'static>(
        self,
        attempt: &Attempt,
        order: Result<Order, Error>,
        value: T,
    ) -> Result<T, Error> {
        let done = order.and_then(|order| match order {
            Order::Hold => {
                judge(self, attempt, &Outcome::Completed { response: None, keep_for: None }).map(drop)
            }
            Order::Complete(completion) => complete(self, attempt, completion),
            Order::Send(message) => Ok(self.send(attempt.handle().id, &[message])?),
        });
        // A server would have aborted the transaction: whoever ignores the error has nothing to commit.
        done.inspect_err(|_| self.refuse()).map(|()| value)
    }

    fn begin_at_once(self, key: InTransaction) -> Result<Begun, Error> {
        key.begin_in(self)
    }

    fn complete_at_once(self, open: OpenAttempt, completion: Result<Completion, Error>) -> Result<(), Error> {
        failpoint!("complete.before");
        let done = completion.and_then(|completion| open.complete_by(self, completion));
        done.inspect_err(|_| self.refuse())?;
        failpoint!("complete.after");
        Ok(())
    }
}

/// By the rules of an attempt that ends, on the record as it stands in this transaction.
fn judge(tx: &Transaction<'_>, attempt: &Attempt, outcome: &Outcome) -> Result<Change, Error> {
    let handle = attempt.handle();
    let seen = tx.load(handle.id)?;
    match machine::finish(seen.as_ref(), handle.token, outcome) {
        Finish::Write(draft) => Ok(Change::after(seen.as_ref(), Revision(rand::random()), draft)),
        Finish::Already => Err(Error::completed()),
        Finish::Known | Finish::Superseded => Err(Error::superseded()),
    }
}

fn complete(tx: &Transaction<'_>, attempt: &Attempt, completion: Completion) -> Result<(), Error> {
    let Completion { response, keep_for } = completion;
    // Zero: the work is done, and its answer is not stored.
    let (response, keep_for) = match keep_for {
        Some(span) if span.is_zero() => (None, None),
        keep_for => (Some(response), keep_for),
    };
    let change = judge(tx, attempt, &Outcome::Completed { response, keep_for })?;
    failpoint!("complete.before");
    let swapped = tx.swap(attempt.handle().id, change)?;
    failpoint!("complete.after");
    match swapped {
        Swapped::Applied(_) => Ok(()),
        Swapped::Lost(_) => Err(Error::superseded()),
    }
}
