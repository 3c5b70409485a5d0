package retryrmq

import "time"

// The error for a duration of an option that cannot work. Nothing here waits less than a millisecond, so a shorter time has no unit.
func checkDuration(option string, d time.Duration) *Error {
	switch {
	case d < 0:
		return invalidOption("`%s` is negative: %v", option, d)
	case isUnitless(d):
		return unitlessError("`"+option+"`", d)
	}
	return nil
}

func isUnitless(d time.Duration) bool { return d > 0 && d < time.Millisecond }

func unitlessError(what string, d time.Duration) *Error {
	return invalidOption("%s is %v, which is less than a millisecond; a number alone counts nanoseconds: for five seconds write 5*time.Second",
		what, d)
}
