// The same types for who requires.

import retryrmq = require('retryrmq')
import testing = require('retryrmq/testing')

export const connected: Promise<retryrmq.Client> = retryrmq.connect()
export const simulated: Promise<testing.Simulated> = testing.simulate({ queue: 'orders' }, () => {}, [])
