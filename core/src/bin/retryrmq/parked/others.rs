//! What others hold, and this walk therefore does not see.

use retryrmq::Browse;

use crate::{fault::Fault, visible};

/// What is known of it at the end of a walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Others {
    /// How many take messages out of the parking queue.
    consumers: u32,
    /// How many messages they took during the walk.
    taken: u32,
}

impl Others {
    pub(super) fn of(browse: &Browse) -> Self {
        Self {
            consumers: browse.others(),
            taken: browse.missed(),
        }
    }

    /// Whether they may hold anything.
    pub(super) fn hold(self) -> bool {
        self.consumers > 0 || self.taken > 0
    }

    /// A sentence for people.
    pub(super) fn sentence(self, parking: &str) -> String {
        let parking = visible::line(parking);
        let who = match self.consumers {
            0 => "others have".to_owned(),
            1 => "another consumer, such as a `retryrmq parked` at its prompt, has".to_owned(),
            many => {
                format!("{many} other consumers, such as a `retryrmq parked` at its prompt, have")
            }
        };
        let what = match self.taken {
            0 => "messages".to_owned(),
            1 => "1 message that was ready when this began, or more,".to_owned(),
            taken => format!("{taken} messages that were ready when this began, or more,"),
        };
        format!(
            "{who} taken {what} out of {parking}: what they hold is not seen here, try again when they are done"
        )
    }

    /// The error for messages that are not there, or not to be seen.
    pub(super) fn or_not_found(self, which: &str, parking: &str) -> Fault {
        if self.hold() {
            Fault::held(format!(
                "no message {which} among those that are to be seen; {}",
                self.sentence(parking)
            ))
        } else {
            Fault::not_found(format!(
                "no message {which} in `{}`; see `retryrmq parked ls`",
                visible::line(parking)
            ))
        }
    }
}
