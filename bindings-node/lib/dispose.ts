/** What `await using` calls at the end of a block; Node 18 learns it only from what compiles `await using` for it. */

/** @internal */
export const dispose: typeof Symbol.asyncDispose = Symbol.asyncDispose ?? (Symbol.for('Symbol.asyncDispose') as never)
