package watermillretryrmq

import "fmt"

type panicError struct {
	text  string
	cause error
}

func panicOf(value any) error {
	cause, _ := value.(error)
	return &panicError{fmt.Sprintf("panic: %v", value), cause}
}

func (p *panicError) Error() string { return p.text }

func (p *panicError) Unwrap() error { return p.cause }

// ErrorType is the type that the record of the message has.
func (p *panicError) ErrorType() string { return "panic" }
