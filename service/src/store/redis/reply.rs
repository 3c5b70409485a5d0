//! The answers of the scripts, read.

use std::time::Duration;

use redis::{FromRedisValue, Value, from_redis_value};

use super::failure;
use crate::store::{
    CancelResult, Claim, Destination, DueMessage, Error, Id, Lease, ListedMessage, Listing,
    Position, Result, StoredMessage, TakeResult, codec,
};

/// The answer of a script, and whose it is.
pub(super) struct Reply {
    address: String,
    value: Value,
}

impl Reply {
    pub(super) fn new(address: &str, value: Value) -> Result<Self> {
        match value {
            Value::ServerError(why) => Err(failure::refused(address, &why)),
            value => Ok(Self {
                address: address.to_owned(),
                value,
            }),
        }
    }

    fn items(self) -> Result<Items> {
        match self.value {
            Value::Array(values) => Ok(Items {
                address: self.address,
                values: values.into_iter(),
            }),
            _ => Err(failure::unexpected(&self.address)),
        }
    }

    pub(super) fn flags(self) -> Result<Vec<bool>> {
        let mut items = self.items()?;
        let mut flags = Vec::new();
        while !items.is_empty() {
            flags.push(items.next::<i64>()? != 0);
        }
        Ok(flags)
    }

    pub(super) fn flags_of(self, count: usize) -> Result<Vec<bool>> {
        let odd = failure::unexpected(&self.address);
        let flags = self.flags()?;
        if flags.len() == count {
            Ok(flags)
        } else {
            Err(odd)
        }
    }

    /// The new token, and which leases have it.
    pub(super) fn moved(self, count: usize) -> Result<(String, Vec<bool>)> {
        let mut items = self.items()?;
        let token = items.next()?;
        let mut held = Vec::with_capacity(count);
        for _ in 0..count {
            held.push(items.next::<i64>()? != 0);
        }
        Ok((token, held))
    }

    pub(super) fn claim(self) -> Result<Claim> {
        let mut items = self.items()?;
        let next: i64 = items.next()?;
        let token: String = items.next()?;
        let mut claim = Claim {
            next: u64::try_from(next).ok().map(Duration::from_millis),
            ..Claim::default()
        };
        while !items.is_empty() {
            let name: String = items.next()?;
            let (late, again): (u64, i64) = (items.next()?, items.next()?);
            let bytes: Vec<u8> = items.next()?;
            let lease = Lease {
                id: items.id(&name)?,
                token: token.clone(),
            };
            match codec::read(&bytes) {
                Ok(draft) => claim.due.push(DueMessage {
                    message: StoredMessage::restored(lease.id.clone(), draft),
                    lease,
                    late: Duration::from_millis(late),
                    again: again != 0,
                }),
                Err(why) => claim.unreadable.push((lease, why)),
            }
        }
        Ok(claim)
    }

    pub(super) fn listing(self) -> Result<Listing> {
        let mut items = self.items()?;
        let total = items.next()?;
        let (score, id): (String, String) = (items.next()?, items.next()?);
        let mut messages = Vec::new();
        while !items.is_empty() {
            // One that is unreadable must not hide the others.
            messages.extend(items.listed()?);
        }
        Ok(Listing {
            messages,
            total,
            next: (!id.is_empty()).then_some(Position { score, id }),
        })
    }

    pub(super) fn found(self) -> Result<Option<ListedMessage>> {
        let mut items = self.items()?;
        if items.is_empty() {
            return Ok(None);
        }
        items.listed()
    }

    pub(super) fn cancelled(self) -> Result<CancelResult> {
        let odd = failure::unexpected(&self.address);
        match self.value {
            Value::Int(number) => cancel_result(number).ok_or(odd),
            _ => Err(odd),
        }
    }

    pub(super) fn hastened(self, count: usize) -> Result<Vec<CancelResult>> {
        let odd = failure::unexpected(&self.address);
        let mut items = self.items()?;
        let mut results = Vec::with_capacity(count);
        while !items.is_empty() {
            results.extend(cancel_result(items.next()?));
        }
        if results.len() == count {
            Ok(results)
        } else {
            Err(odd)
        }
    }

    pub(super) fn taken(self, id: &Id) -> Result<TakeResult> {
        let mut items = self.items()?;
        match items.values.len() {
            0 => return Ok(TakeResult::Unknown),
            1 => return Ok(TakeResult::TooLate),
            _ => {}
        }
        let token = items.next()?;
        let remaining = Duration::from_millis(items.next()?);
        let bytes: Vec<u8> = items.next()?;
        let draft = codec::read(&bytes)
            .map_err(|why| Error::Refused(format!("{id} cannot be read: {why}")))?;
        let id = id.clone();
        Ok(TakeResult::Taken {
            message: StoredMessage::restored(id.clone(), draft),
            lease: Lease { id, token },
            remaining,
        })
    }

    /// How many messages there are, and how many of them wait for each line. Without a line that has lost its name.
    pub(super) fn counts(self) -> Result<(u64, Vec<(Destination, u64)>)> {
        let mut items = self.items()?;
        let total = items.next()?;
        let mut counts = Vec::new();
        while !items.is_empty() {
            let (key, count): (String, u64) = (items.next()?, items.next()?);
            counts.extend(Destination::from_key(&key).map(|destination| (destination, count)));
        }
        counts.sort();
        Ok((total, counts))
    }
}

fn cancel_result(number: i64) -> Option<CancelResult> {
    match number {
        0 => Some(CancelResult::Unknown),
        1 => Some(CancelResult::Done),
        2 => Some(CancelResult::TooLate),
        _ => None,
    }
}

struct Items {
    address: String,
    values: std::vec::IntoIter<Value>,
}

impl Items {
    fn is_empty(&self) -> bool {
        self.values.as_slice().is_empty()
    }

    fn next<T: FromRedisValue>(&mut self) -> Result<T> {
        self.values
            .next()
            .and_then(|value| from_redis_value(value).ok())
            .ok_or_else(|| failure::unexpected(&self.address))
    }

    fn id(&self, name: &str) -> Result<Id> {
        Id::parse(name).ok_or_else(|| {
            Error::Refused(format!(
                "Redis at {} has keys of ours that this program did not write; change `name`",
                self.address
            ))
        })
    }

    fn listed(&mut self) -> Result<Option<ListedMessage>> {
        let name: String = self.next()?;
        let remaining = Duration::from_millis(self.next()?);
        let claimed = self.next::<i64>()? != 0;
        let (due, body_size) = (self.next()?, self.next()?);
        let bytes: Vec<u8> = self.next()?;
        let id = self.id(&name)?;
        let Ok(draft) = codec::read(&bytes) else {
            return Ok(None);
        };
        Ok(Some(ListedMessage {
            message: StoredMessage::restored(id, draft),
            body_size,
            due,
            remaining,
            claimed,
        }))
    }
}
