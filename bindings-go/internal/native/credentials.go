package native

/*
#include "shim.h"
*/
import "C"

// Login is who logs in.
type Login struct {
	User, Password string
	// ExpiresIn is how long the password is good for, in nanoseconds; 0 where that is not known.
	ExpiresIn uint64
}

// AddCredentialProvider has the requests of a connection for credentials passed to ask, which must not wait for anything: each when it is open, and when
// it is over, unless it was answered before. The number is for ConnectOptions.
func AddCredentialProvider(ask func(request uint64, over bool)) (provider uint64) {
	dispatcher.mu.Lock()
	defer dispatcher.mu.Unlock()
	dispatcher.next++
	dispatcher.providers[dispatcher.next] = ask
	return dispatcher.next
}

// RemoveCredentialProvider ends that.
func RemoveCredentialProvider(provider uint64) {
	dispatcher.mu.Lock()
	defer dispatcher.mu.Unlock()
	delete(dispatcher.providers, provider)
}

// AnswerCredentials answers a request: with a login, or without one and why not, as the rest of a sentence. An answer that nobody waits for any
// more is let go. Texts must be valid UTF-8.
func AnswerCredentials(request uint64, login *Login, why string) {
	var w Writer
	if login != nil && len(login.User)+len(login.Password) > maxBytes/2 {
		login, why = nil, "it gave more than 1 GiB"
	}
	if login != nil {
		w.Int32(1)
		w.String(login.User)
		w.String(login.Password)
		w.Bool(login.ExpiresIn != 0)
		if login.ExpiresIn != 0 {
			w.Uint64(login.ExpiresIn)
		}
	} else {
		w.Int32(2)
		w.String(why)
	}
	bytes, n := lend(w.B)
	_, _ = valueOf(C.rr_answer_credentials(C.uint64_t(request), bytes, n))
}
