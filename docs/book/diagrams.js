// Draws what the pages say in Mermaid's language, where its script is there; otherwise the text is shown as it is.
if (document.querySelector('pre.mermaid')) {
  const script = document.createElement('script')
  script.src = `${path_to_root}mermaid.min.js`
  script.onload = () => {
    const dark = ['coal', 'navy', 'ayu'].some((theme) => document.documentElement.classList.contains(theme))
    mermaid.initialize({ startOnLoad: false, theme: dark ? 'dark' : 'default' })
    mermaid.run()
  }
  document.head.append(script)
}
