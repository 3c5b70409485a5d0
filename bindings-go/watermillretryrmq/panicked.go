package watermillretryrmq

import "fmt"

type panicked struct {
	text  string
	cause error
}

func panicOf(value any) error {
	cause, _ := value.(error)
	return &panicked{fmt.Sprintf("panic: %v", value), cause}
}

func (p *panicked) Error() string { return p.text }

func (p *panicked) Unwrap() error { return p.cause }

// ErrorType is the type that the record of the message has.
func (p *panicked) ErrorType() string { return "panic" }
