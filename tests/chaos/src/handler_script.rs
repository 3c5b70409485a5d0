//! What the handler of a message does. A message says so in its body, so that every process knows.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;

/// How often a message is tried by the policies of [`crate::plan`].
pub const ATTEMPTS: u32 = 4;
/// An innocent message may be blamed for three crashes beside it, and for those in its own run as often as they hit it.
const UNLUCKY: u32 = 7;

/// What the handler of a message does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerScript {
    /// Succeeds.
    Fine,
    /// Succeeds after as many failures.
    Fails(u32),
    /// Fails once, and asks for a delay of its own.
    AsksForDelay,
    /// Succeeds after it was put off as often.
    Defers(u32),
    /// Succeeds after a second.
    Slow,
    /// Does not end, the first time.
    HangsOnce,
    /// Ends its process, the first time.
    CrashesOnce,
    /// Succeeds, and was published with so many crashes on its record.
    Forged(u32),
    /// Fails for ever.
    FailsAlways,
    /// Asks to be parked.
    Parks,
    /// Ends its process, always.
    Poison,
}

impl HandlerScript {
    /// One that ends by itself and takes nobody along.
    pub fn gentle(random: &mut Rng) -> Self {
        match random.u8(0..40) {
            0..6 => Self::Fails(1),
            6..8 => Self::Fails(2),
            8..10 => Self::FailsAlways,
            10..12 => Self::Parks,
            12..14 => Self::Defers(random.u32(1..3)),
            14 => Self::Slow,
            15 | 16 => Self::AsksForDelay,
            _ => Self::Fine,
        }
    }

    /// One of all but poison, of which a life has one at most.
    pub fn any(random: &mut Rng) -> Self {
        match random.u8(0..60) {
            0 => Self::HangsOnce,
            1 => Self::CrashesOnce,
            2 => Self::Forged(random.u32(1..7)),
            _ => Self::gentle(random),
        }
    }

    /// Whether no attempt can succeed, so that it has to be parked in the end.
    pub fn is_doomed(self) -> bool {
        matches!(self, Self::FailsAlways | Self::Parks | Self::Poison)
    }

    /// Whether it may be parked for this reason, when as many of its runs came to no end.
    pub fn may_be_parked(self, reason: &str, unfinished: u32) -> bool {
        match reason {
            "exhausted" => self == Self::FailsAlways,
            "requested" => self == Self::Parks,
            // One that could not be parked for long is blamed for every connection that is lost meanwhile.
            "delivery-limit" => {
                self.is_doomed() || matches!(self, Self::Forged(_)) || unfinished >= UNLUCKY
            }
            _ => false,
        }
    }

    /// What an attempt does, apart from how long it takes and whom it takes along.
    pub fn attempt_end(self, attempt: u32, deferrals: u32) -> AttemptEnd {
        match self {
            Self::Fails(times) if attempt <= times => AttemptEnd::Fail,
            Self::FailsAlways => AttemptEnd::Fail,
            Self::AsksForDelay if attempt == 1 => {
                AttemptEnd::FailAndWait(Duration::from_millis(370))
            }
            Self::Defers(times) if deferrals < times => {
                AttemptEnd::Defer(Duration::from_millis(130))
            }
            Self::Parks => AttemptEnd::Park,
            _ => AttemptEnd::Succeed,
        }
    }
}

/// How an attempt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// It succeeds.
    Succeed,
    /// It fails.
    Fail,
    /// It fails and chooses its delay.
    FailAndWait(Duration),
    /// It puts the message off.
    Defer(Duration),
    /// It asks to park the message.
    Park,
}

impl fmt::Display for HandlerScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fine => f.write_str("fine"),
            Self::Fails(times) => write!(f, "fails {times}"),
            Self::AsksForDelay => f.write_str("asks-for-delay"),
            Self::Defers(times) => write!(f, "defers {times}"),
            Self::Slow => f.write_str("slow"),
            Self::HangsOnce => f.write_str("hangs-once"),
            Self::CrashesOnce => f.write_str("crashes-once"),
            Self::Forged(crashes) => write!(f, "forged {crashes}"),
            Self::FailsAlways => f.write_str("fails-always"),
            Self::Parks => f.write_str("parks"),
            Self::Poison => f.write_str("poison"),
        }
    }
}

/// The text was no kind of message.
#[derive(Debug)]
pub struct ParseHandlerScriptError(String);

impl fmt::Display for ParseHandlerScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is no kind of message", self.0)
    }
}

impl std::error::Error for ParseHandlerScriptError {}

impl FromStr for HandlerScript {
    type Err = ParseHandlerScriptError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseHandlerScriptError(text.to_owned());
        let (word, number) = text.split_once(' ').unwrap_or((text, "0"));
        let number = number.parse().map_err(|_| wrong())?;
        Ok(match word {
            "fine" => Self::Fine,
            "fails" => Self::Fails(number),
            "asks-for-delay" => Self::AsksForDelay,
            "defers" => Self::Defers(number),
            "slow" => Self::Slow,
            "hangs-once" => Self::HangsOnce,
            "crashes-once" => Self::CrashesOnce,
            "forged" => Self::Forged(number),
            "fails-always" => Self::FailsAlways,
            "parks" => Self::Parks,
            "poison" => Self::Poison,
            _ => return Err(wrong()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_reads_back_what_it_writes() {
        let mut random = Rng::with_seed(1);
        let some = (0..2_000).map(|_| HandlerScript::any(&mut random));
        for kind in some.chain([HandlerScript::Poison]) {
            assert_eq!(kind.to_string().parse::<HandlerScript>().unwrap(), kind);
        }
        assert!("nonsense".parse::<HandlerScript>().is_err());
    }

    #[test]
    fn what_can_succeed_does_so_with_an_attempt_to_spare() {
        let mut random = Rng::with_seed(2);
        for kind in (0..2_000).map(|_| HandlerScript::any(&mut random)) {
            let succeeds =
                (1..ATTEMPTS).any(|attempt| kind.attempt_end(attempt, 9) == AttemptEnd::Succeed);
            assert_eq!(succeeds, !kind.is_doomed(), "{kind}");
        }
    }
}
