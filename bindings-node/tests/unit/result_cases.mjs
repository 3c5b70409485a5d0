// What handlers return: by name, and what the error says of it. For the simulation and for the real consumer.

/** A promise whose failure nobody hears of, unless the attempt tells. */
const broken = () => Promise.reject(new Error('in the background'))
const lazy = () => ({
  then() {
    throw new Error('it must not be started')
  },
})

/** As TypeScript writes it for engines without `async function*` (`target` below ES2018). */
const __await = function (v) { this.v = v }
const __asyncGenerator = function (thisArg, _arguments, generator) {
  var g = generator.apply(thisArg, _arguments || []), i, q = []
  return i = Object.create((typeof AsyncIterator === "function" ? AsyncIterator : Object).prototype), verb("next"), verb("throw"), verb("return", awaitReturn), i[Symbol.asyncIterator] = function () { return this }, i
  function awaitReturn(f) { return function (v) { return Promise.resolve(v).then(f, reject) } }
  function verb(n, f) { if (g[n]) { i[n] = function (v) { return new Promise(function (a, b) { q.push([n, v, a, b]) > 1 || resume(n, v) }) }; if (f) i[n] = f(i[n]) } }
  function resume(n, v) { try { step(g[n](v)) } catch (e) { settle(q[0][3], e) } }
  function step(r) { r.value instanceof __await ? Promise.resolve(r.value.v).then(fulfill, reject) : settle(q[0][2], r) }
  function fulfill(value) { resume("next", value) }
  function reject(value) { resume("throw", value) }
  function settle(f, v) { if (f(v), q.shift(), q.length) resume(q[0][0], q[0][1]) }
}
/** As above, for engines without generators at all: by hand, but with the same methods. */
const compiled = () => ({
  next: () => ({ value: 1, done: false }),
  throw: () => ({ value: undefined, done: true }),
  return: () => ({ value: undefined, done: true }),
  [Symbol.iterator]() {
    return this
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
  'a compiled generator': { make: compiled, says: /returned a generator, which nobody runs/ },
  'a compiled async generator': {
    make: () => __asyncGenerator(undefined, [], function* () { yield 1 }),
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
  'a cursor that is no iterator': () => ({ next() {}, return() {} }),
  'an iterable': () => new Set([1]),
  'a promise': () => Promise.resolve(7),
}
