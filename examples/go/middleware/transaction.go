package middleware

import (
	"context"
	"database/sql"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// ANCHOR: middleware

type txKey struct{}

// Tx is the transaction of this attempt.
func Tx(ctx context.Context) *sql.Tx { return ctx.Value(txKey{}).(*sql.Tx) }

// InTransaction gives each attempt a transaction, which is committed only if the handler succeeds.
func InTransaction(db *sql.DB) retryrmq.Middleware {
	return func(next retryrmq.Handler) retryrmq.Handler {
		return func(ctx context.Context, m *retryrmq.Message) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback() // has no effect after Commit
			if err := next(context.WithValue(ctx, txKey{}, tx), m); err != nil {
				return err
			}
			return tx.Commit()
		}
	}
}

// ANCHOR_END: middleware
