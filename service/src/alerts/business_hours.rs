//! Office hours: when people are told what can wait until the morning.

use jiff::{
    Timestamp, Zoned,
    civil::{Date, Time, Weekday},
    tz::TimeZone,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the days of the week")]
pub enum Day {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

impl Day {
    const fn weekday(self) -> Weekday {
        match self {
            Self::Mon => Weekday::Monday,
            Self::Tue => Weekday::Tuesday,
            Self::Wed => Weekday::Wednesday,
            Self::Thu => Weekday::Thursday,
            Self::Fri => Weekday::Friday,
            Self::Sat => Weekday::Saturday,
            Self::Sun => Weekday::Sunday,
        }
    }
}

/// When `morning` is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BusinessHours {
    /// A time zone of the IANA database, such as `Europe/Berlin`.
    pub time_zone: String,
    /// When the office opens, such as `09:00`.
    pub from: String,
    /// When it closes, such as `17:00`; later than `from`.
    pub to: String,
    /// On which days.
    pub days: Vec<Day>,
}

impl Default for BusinessHours {
    fn default() -> Self {
        Self {
            time_zone: "UTC".to_owned(),
            from: "09:00".to_owned(),
            to: "17:00".to_owned(),
            days: vec![Day::Mon, Day::Tue, Day::Wed, Day::Thu, Day::Fri],
        }
    }
}

impl BusinessHours {
    /// Reads zone and times.
    ///
    /// # Errors
    /// A sentence that names what to change.
    pub fn calendar(&self) -> Result<Calendar, String> {
        let zone = TimeZone::get(&self.time_zone).map_err(|_| {
            format!(
                "`time_zone = \"{}\"` is not in the time zone database; write it like \"Europe/Berlin\"",
                self.time_zone.escape_debug()
            )
        })?;
        let time = |name: &str, text: &str| {
            Time::strptime("%H:%M", text).map_err(|_| {
                format!(
                    "`{name} = \"{}\"` is no time of day; write it like \"09:00\"",
                    text.escape_debug()
                )
            })
        };
        let (from, to) = (time("from", &self.from)?, time("to", &self.to)?);
        if from >= to {
            return Err(format!(
                "the office closes at {} and opens at {}: `to` must be later than `from`",
                self.to, self.from
            ));
        }
        if self.days.is_empty() {
            return Err("`days` names no day, so `morning` would never come".to_owned());
        }
        let days = self.days.iter().map(|day| day.weekday()).collect();
        Ok(Calendar {
            zone,
            from,
            to,
            days,
        })
    }
}

/// Office hours that can be asked.
#[derive(Clone, Debug)]
pub struct Calendar {
    zone: TimeZone,
    from: Time,
    to: Time,
    days: Vec<Weekday>,
}

impl Calendar {
    /// When the office is open next: `now` while it is.
    #[must_use]
    pub fn opens(&self, now: Timestamp) -> Timestamp {
        let local = now.to_zoned(self.zone.clone());
        let mut date = local.date();
        // Eight days hold every weekday once after today.
        for _ in 0..=8 {
            if self.days.contains(&date.weekday())
                && let Some((opens, closes)) = self.open_on(date)
            {
                if now < opens {
                    return opens;
                }
                if now < closes {
                    return now;
                }
            }
            match date.tomorrow() {
                Ok(next) => date = next,
                Err(_) => break, // the end of the calendar
            }
        }
        now
    }

    /// In a night with a change of the clock a time may not exist; then the one after the gap counts.
    fn open_on(&self, date: Date) -> Option<(Timestamp, Timestamp)> {
        let at = |time: Time| -> Option<Timestamp> {
            let zoned: Zoned = date.to_datetime(time).to_zoned(self.zone.clone()).ok()?;
            Some(zoned.timestamp())
        };
        Some((at(self.from)?, at(self.to)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opens(hours: &BusinessHours, now: &str) -> String {
        let now: Timestamp = now.parse().unwrap();
        hours.calendar().unwrap().opens(now).to_string()
    }

    #[test]
    fn the_morning_is_in_the_zone_of_the_people() {
        let hours = BusinessHours {
            time_zone: "Europe/Berlin".to_owned(),
            ..BusinessHours::default()
        };
        for (now, expected) in [
            // A Friday in winter, UTC+1: before, within, after.
            ("2026-01-09T07:59:59Z", "2026-01-09T08:00:00Z"),
            ("2026-01-09T08:00:00Z", "2026-01-09T08:00:00Z"),
            ("2026-01-09T15:59:59Z", "2026-01-09T15:59:59Z"),
            ("2026-01-09T16:00:00Z", "2026-01-12T08:00:00Z"),
            // The weekend of the change to summer time: Monday's morning is an hour earlier.
            ("2026-03-28T12:00:00Z", "2026-03-30T07:00:00Z"),
        ] {
            assert_eq!(opens(&hours, now), expected, "{now}");
        }
    }

    #[test]
    fn zones_are_known_where_the_system_has_none() {
        let own = jiff::tz::TimeZoneDatabase::bundled();
        assert!(own.get(&BusinessHours::default().time_zone).is_ok());
        assert!(own.get("Europe/Berlin").is_ok());
    }

    #[test]
    fn one_day_a_week_comes_again_and_a_time_that_does_not_exist_is_after_the_gap() {
        let sunday = BusinessHours {
            time_zone: "Europe/Berlin".to_owned(),
            from: "02:30".to_owned(),
            to: "04:00".to_owned(),
            days: vec![Day::Sun],
        };
        assert_eq!(
            opens(&sunday, "2026-03-22T10:00:00Z"),
            "2026-03-29T01:30:00Z"
        );
    }

    #[test]
    fn what_is_no_time_is_refused_with_a_sentence() {
        let with = |change: fn(&mut BusinessHours)| {
            let mut hours = BusinessHours::default();
            change(&mut hours);
            hours.calendar().unwrap_err()
        };
        for (why, words) in [
            (with(|h| h.time_zone = "Mars/Base".into()), "Europe/Berlin"),
            (with(|h| h.from = "nine".into()), "09:00"),
            (with(|h| h.to = "09:00".into()), "later than `from`"),
            (with(|h| h.days.clear()), "never come"),
        ] {
            assert!(why.contains(words), "{why}");
        }
    }
}
