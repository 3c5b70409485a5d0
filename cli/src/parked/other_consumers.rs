//! What others hold, and this walk therefore does not see.

use retryrmq::{Browse, Error, terminal_escape};

use crate::{error::CliError, exit::Exit, output::Output};

/// Why a walk cannot go on; somebody who consumes a classic queue exclusively is no lack of a permission.
pub(super) fn refused(error: Error, parking: &str) -> CliError {
    if !error.to_string().contains("in exclusive use") {
        return error.into();
    }
    CliError::held(format!(
        "another consumer uses {} exclusively; try again when it is done",
        terminal_escape::line(parking)
    ))
}

/// What is known of it at the end of a walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct OtherConsumers {
    /// How many take messages out of the parking queue.
    consumers: u32,
    /// How many messages they took during the walk.
    taken: u32,
}

impl OtherConsumers {
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
        let parking = terminal_escape::line(parking);
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

    /// Tells people; a program reads it as an error.
    pub(super) fn report(self, parking: &str, output: &Output) -> Result<Exit, CliError> {
        let sentence = self.sentence(parking);
        if output.is_json() {
            return Err(CliError::held(sentence));
        }
        output.note(&sentence);
        Ok(Exit::Held)
    }

    /// The error for an id that a message may have which is not to be seen.
    pub(super) fn may_hold_more(self, parking: &str) -> CliError {
        CliError::held(format!(
            "nothing was dropped, because a message that is not visible may have the same id or failure: {}; or write #1=MARK, as `parked ls` shows it",
            self.sentence(parking)
        ))
    }

    /// The error for messages that are not there, or not to be seen.
    pub(super) fn or_not_found(self, which: &str, parking: &str) -> CliError {
        if self.hold() {
            CliError::held(format!(
                "no message {which} among the visible ones; {}",
                self.sentence(parking)
            ))
        } else {
            CliError::not_found(format!(
                "no message {which} in `{}`; see `retryrmq parked ls`",
                terminal_escape::line(parking)
            ))
        }
    }
}
