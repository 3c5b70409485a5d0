package native

/*
#include "shim.h"
*/
import "C"

// Simulation is a queue and its consumer on a clock of their own.
type Simulation struct{ object }

// NewSimulation makes an empty queue.
func NewSimulation(options *Options) (*Simulation, error) {
	if !options.enter() {
		return nil, ErrFreed
	}
	defer options.leave()
	handle, err := valueOf(C.rr_simulation_new(C.uint64_t(options.handle)))
	if err != nil {
		return nil, err
	}
	simulation := &Simulation{}
	simulation.own(handle, func(handle uint64) { C.rr_free_simulation(C.uint64_t(handle)) })
	return simulation, nil
}

// Publish publishes to the queue.
func (s *Simulation) Publish(message *Outgoing) error {
	if len(message.Body) > mostBytes {
		return errTooLarge
	}
	if !s.enter() {
		return ErrFreed
	}
	defer s.leave()
	bytes, n := lent(message.envelope())
	body, size := lent(message.Body)
	_, err := valueOf(C.rr_simulation_publish(C.uint64_t(s.handle), bytes, n, body, size))
	return err
}

// Next is the next message as a batch of one; nil at the end.
func (s *Simulation) Next() ([]byte, error) {
	if !s.enter() {
		return nil, ErrFreed
	}
	defer s.leave()
	return bytesOf(C.rr_simulation_next(C.uint64_t(s.handle)))
}

// Elapsed is how many nanoseconds have passed.
func (s *Simulation) Elapsed() uint64 {
	if !s.enter() {
		return 0
	}
	defer s.leave()
	elapsed, _ := valueOf(C.rr_simulation_elapsed(C.uint64_t(s.handle)))
	return elapsed
}

// Became is what became of a message.
type Became struct {
	What   string
	Delay  uint64
	Reason string
	Parked []byte
}

// Settle ends an attempt.
func (s *Simulation) Settle(token uint64, ending *Ending) (Became, error) {
	if !s.enter() {
		return Became{}, ErrFreed
	}
	defer s.leave()
	written := ending.bytes()
	if len(written) > mostBytes {
		return Became{}, errTooLarge
	}
	bytes, n := lent(written)
	answer, err := bytesOf(C.rr_simulation_settle(C.uint64_t(s.handle), C.uint64_t(token), bytes, n))
	if err != nil {
		return Became{}, err
	}
	r := NewReader(answer)
	became := Became{What: r.String()}
	became.Delay, _ = r.OptionalUint64()
	became.Reason = r.OptionalString()
	became.Parked = r.OptionalBytes()
	return became, r.End()
}
