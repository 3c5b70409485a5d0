// What handlers return: by name, and what the error says of it. For the simulation and for the real consumer.

/** A promise whose failure nobody hears of, unless the attempt tells. */
const broken = () => Promise.reject(new Error('in the background'))
const lazy = () => ({
  then() {
    throw new Error('it must not be started')
  },
})

/** Work that nobody would do. */
export const UNDONE = {
  'a generator': {
    make: function* () {
      yield 1
    },
    says: /returned a generator, which nobody runs/,
  },
  'an async generator': {
    make: async function* () {
      yield 1
    },
    says: /returned a generator, which nobody runs/,
  },
  'a function': { make: () => function work() {}, says: /returned the function `work`, which nobody calls/ },
  'an arrow function': { make: () => () => {}, says: /returned a function, which nobody calls/ },
  'an async function': { make: () => async function work() {}, says: /returned the function `work`, which nobody calls/ },
  'an array of promises': {
    make: () => [7, Promise.resolve(), broken()],
    says: /returned an array with a promise, which nobody awaits; write `await Promise\.all\(…\)`/,
  },
  'an array of lazy thenables': { make: () => [lazy(), lazy()], says: /an array with a promise, which nobody awaits/ },
}

/** What does not matter. */
export const FINE = {
  nothing: () => undefined,
  null: () => null,
  'a number': () => 7,
  'an array': () => [1, [2], null, { three: 3 }],
  'an object': () => ({ then: 7 }),
  'a stale iterator': () => new Map().values(),
  'a promise': () => Promise.resolve(7),
}
