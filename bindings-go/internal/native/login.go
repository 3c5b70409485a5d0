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

// AskedBy has the questions of a connection, who logs in, told to ask, which must not wait for anything: each when it is open, and when
// it is over, unless it was answered before. The number is for Dialling.
func AskedBy(ask func(question uint64, over bool)) (credentials uint64) {
	room.mu.Lock()
	defer room.mu.Unlock()
	room.next++
	room.asked[room.next] = ask
	return room.next
}

// AskedNoMore ends that.
func AskedNoMore(credentials uint64) {
	room.mu.Lock()
	defer room.mu.Unlock()
	delete(room.asked, credentials)
}

// Answer answers a question: with a login, or without one and why not, as the rest of a sentence. An answer that nobody waits for any
// more is let go. Texts must be valid UTF-8.
func Answer(question uint64, login *Login, why string) {
	var w Writer
	if login != nil && len(login.User)+len(login.Password) > mostBytes/2 {
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
	bytes, n := lent(w.B)
	_, _ = valueOf(C.rr_answer_login(C.uint64_t(question), bytes, n))
}
