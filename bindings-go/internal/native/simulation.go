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
	if len(message.Body) > maxBytes {
		return errTooLarge
	}
	if !s.enter() {
		return ErrFreed
	}
	defer s.leave()
	bytes, n := lend(message.envelope())
	body, size := lend(message.Body)
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

// SimulationResult is what became of a message.
type SimulationResult struct {
	What   string
	Delay  uint64
	Reason string
	Parked []byte
}

// Settle ends an attempt.
func (s *Simulation) Settle(token uint64, end *End) (SimulationResult, error) {
	if !s.enter() {
		return SimulationResult{}, ErrFreed
	}
	defer s.leave()
	written := end.bytes()
	if len(written) > maxBytes {
		return SimulationResult{}, errTooLarge
	}
	bytes, n := lend(written)
	answer, err := bytesOf(C.rr_simulation_settle(C.uint64_t(s.handle), C.uint64_t(token), bytes, n))
	if err != nil {
		return SimulationResult{}, err
	}
	r := NewReader(answer)
	result := SimulationResult{What: r.String()}
	result.Delay, _ = r.OptionalUint64()
	result.Reason = r.OptionalString()
	result.Parked = r.OptionalBytes()
	return result, r.End()
}
