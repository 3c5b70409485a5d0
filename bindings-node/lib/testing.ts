/// <reference types="node" preserve="true" />

/**
 * Tests without a broker, for any test runner: handlers on a virtual clock, and a client that keeps what is published.
 *
 *     const result = await simulate({ queue: 'orders', dlx: true }, handle, ['not json'])
 *     assert.equal(result.parked[0].reason, 'exhausted')
 *     assert.equal(result.elapsed, 341_000)
 *
 *     const fake = new FakeClient()
 *     await service(fake).inject({ method: 'POST', url: '/orders', payload: { id: 7 } })
 *     assert.deepEqual(fake.published[0].message.json(), { id: 7 })
 *
 * @packageDocumentation
 */

export { FakeClient, type FakeOptions, type Published } from './fake_client.js'
export { type Attempt, type Became, type Ended, type Input, type Simulated, liveObjects, simulate } from './simulation.js'
