/** The packages with native files: which are this machine's. Private to this package. */

/**
 * This machine's packages, the likelier first: which C library Linux has is told by which module loads.
 * @internal
 */
export function platforms(): string[] {
  const name = `${process.platform}-${process.arch}`
  return process.platform === 'linux' ? [`${name}-gnu`, `${name}-musl`] : [name]
}
