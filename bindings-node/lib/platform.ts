/** Which packages have the native files for this machine. Private to this package. */

/**
 * The packages for this machine, the likelier first. On Linux the one that loads shows which C library there is.
 * @internal
 */
export function platforms(): string[] {
  const name = `${process.platform}-${process.arch}`
  return process.platform === 'linux' ? [`${name}-gnu`, `${name}-musl`] : [name]
}
