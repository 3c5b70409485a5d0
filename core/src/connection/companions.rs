//! The open connections of one client, which must all be to the same cluster: a message that is consumed at one broker and copied to
//! another would wait where nobody looks for it.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use super::transport::Lifeline;
use crate::{Error, ErrorKind, Result};

/// Those of the connections that are open, by the name of the cluster that they lead to.
#[derive(Clone, Default)]
pub(super) struct Companions(Arc<Mutex<Vec<Companion>>>);

struct Companion {
    cluster: String,
    lifeline: Weak<Lifeline>,
}

impl Companions {
    /// Takes in a connection. Names may be the same by chance; different ones are not.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUrl`] where another one is open that leads to another cluster.
    pub(super) fn join(&self, cluster: &str, lifeline: &Arc<Lifeline>) -> Result<()> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| {
            let lifeline = other.lifeline.upgrade();
            lifeline.is_some_and(|lifeline| !lifeline.is_gone())
        });
        if let Some(other) = all.iter().find(|other| other.cluster != cluster) {
            let other = &other.cluster;
            return Err(Error::new(
                ErrorKind::InvalidUrl,
                format!(
                    "the hosts of the URL are not one cluster: one says that it is `{cluster}`, and the others `{other}`; a message \
                     that is consumed at one would be retried at the other; name the hosts of one cluster only"
                ),
            ));
        }
        all.push(Companion {
            cluster: cluster.to_owned(),
            lifeline: Arc::downgrade(lifeline),
        });
        Ok(())
    }
}

/// What is open says nothing of who may be asked.
impl PartialEq for Companions {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Companions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Companions")
    }
}
