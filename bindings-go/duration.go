package retryrmq

import "time"

// The error for a duration of an option that cannot work. Nothing here waits less than a millisecond, so a shorter time has no unit.
func checkSpan(option string, d time.Duration) *Error {
	switch {
	case d < 0:
		return badOption("`%s` is negative: %v", option, d)
	case isBare(d):
		return bareNumber("`"+option+"`", d)
	}
	return nil
}

func isBare(d time.Duration) bool { return d > 0 && d < time.Millisecond }

func bareNumber(what string, d time.Duration) *Error {
	return badOption("%s is %v, which is less than a millisecond; a number alone counts nanoseconds: for five seconds write 5*time.Second",
		what, d)
}
