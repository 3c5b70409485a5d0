// What the tests in NestJS share. Decorators are called as functions, because these files are not compiled.

import 'reflect-metadata'

import { Module } from '@nestjs/common'
import { Test } from '@nestjs/testing'
import { setLogger } from 'retryrmq'
import { RetryRmqModule, RetryRmqTesting } from 'retryrmq/nestjs'

setLogger(false)

const silence = () => {}
export const silent = { log: silence, error: silence, warn: silence, debug: silence, verbose: silence, fatal: silence }

/** Decorates a method, as if these were written above it. */
export function method(Class, name, ...decorators) {
  const descriptor = Object.getOwnPropertyDescriptor(Class.prototype, name)
  for (const decorate of decorators.reverse()) decorate(Class.prototype, name, descriptor)
}

/** Decorates a class. */
export function decorated(Class, ...decorators) {
  for (const decorate of decorators.reverse()) decorate(Class)
  return Class
}

/** What the compiler writes for the parameters of a method, or of the constructor. */
export function parameters(Class, name, ...types) {
  if (name === 'constructor') Reflect.defineMetadata('design:paramtypes', types, Class)
  else Reflect.defineMetadata('design:paramtypes', types, Class.prototype, name)
}

/** A module class. */
export const module = (metadata) => decorated(class App {}, Module(metadata))

/** An application without a broker, and what takes the place of its client. */
export async function simulated(t, metadata, options = {}, prepare = () => {}) {
  const imports = [...(metadata.imports ?? []), RetryRmqModule.forTest(options)]
  const app = await Test.createTestingModule({ ...metadata, imports }).setLogger(silent).compile()
  prepare(app)
  await app.init()
  t.after(() => app.close())
  return { app, rmq: app.get(RetryRmqTesting) }
}
