// Shows programs in several languages as tabs: a run of `<details>` whose summaries are bold, which GitHub shows folded one below the other.
// The language that a reader chooses stays chosen on all pages. Without this script the pages work as on GitHub.
(() => {
  const KEY = 'retryrmq-tab'
  const runs = [] // of { label, panel, tab }[]

  const stored = () => {
    try {
      return localStorage.getItem(KEY)
    } catch {
      return null // where the browser keeps nothing
    }
  }
  const store = (label) => {
    try {
      localStorage.setItem(KEY, label)
    } catch {
      // as above
    }
  }

  const labelOf = (panel) => panel.querySelector(':scope > summary > b')?.textContent
  const next = (element) => {
    let node = element.nextSibling
    while (node && (node.nodeType === Node.COMMENT_NODE || (node.nodeType === Node.TEXT_NODE && !node.textContent.trim()))) node = node.nextSibling
    return node
  }

  const select = (run, chosen) => {
    for (const { panel, tab } of run) {
      const isChosen = tab === chosen.tab
      panel.open = true
      panel.hidden = !isChosen
      tab.setAttribute('aria-selected', String(isChosen))
      tab.tabIndex = isChosen ? 0 : -1
    }
  }
  // In every run of the page that has this language: `Python` is also `FastAPI (Python)`.
  const selectLabel = (label) => {
    for (const run of runs) {
      const found = run.find((entry) => entry.label === label) ?? run.find((entry) => entry.label.includes(`(${label})`))
      if (found) select(run, found)
    }
  }
  // A link to a tab, or into one.
  const selectTarget = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)))
    if (!target) return
    for (const run of runs) {
      const found = run.find(({ panel }) => panel.contains(target))
      if (!found) continue
      select(run, found)
      found.tab.parentElement.scrollIntoView()
      if (target !== found.panel) target.scrollIntoView()
    }
  }

  const make = (panels) => {
    const list = document.createElement('div')
    list.className = 'tabs'
    list.setAttribute('role', 'tablist')
    list.setAttribute('aria-label', 'Language')
    const run = panels.map((panel, index) => {
      const label = labelOf(panel)
      const tab = document.createElement('button')
      tab.type = 'button'
      tab.textContent = label
      tab.id = `tab-${runs.length}-${index}`
      tab.setAttribute('role', 'tab')
      panel.id ||= `panel-${runs.length}-${index}`
      tab.setAttribute('aria-controls', panel.id)
      panel.setAttribute('role', 'tabpanel')
      panel.setAttribute('aria-labelledby', tab.id)
      panel.classList.add('tab-panel')
      list.append(tab)
      return { label, panel, tab }
    })
    for (const [index, entry] of run.entries()) {
      entry.tab.addEventListener('click', () => {
        const before = list.getBoundingClientRect().top
        store(entry.label.match(/\((Python|Node|Go|Rust)\)$/)?.[1] ?? entry.label) // other pages know the language, and not the framework
        selectLabel(entry.label)
        select(run, entry)
        window.scrollBy(0, list.getBoundingClientRect().top - before) // what is above may have another height now
      })
      entry.tab.addEventListener('keydown', (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key]
        if (!step) return
        event.preventDefault()
        event.stopPropagation() // mdBook turns the page
        const to = run[(index + step + run.length) % run.length].tab
        to.focus()
        to.click()
      })
    }
    panels[0].before(list)
    runs.push(run)
    select(run, run[0])
  }

  const seen = new Set()
  for (const first of document.querySelectorAll('main details')) {
    const panels = []
    for (let node = first; node instanceof HTMLDetailsElement && labelOf(node) && !seen.has(node); node = next(node)) {
      panels.push(node)
      seen.add(node)
    }
    if (panels.length > 1) make(panels)
  }
  const chosen = stored()
  if (chosen) selectLabel(chosen)
  selectTarget()
  window.addEventListener('hashchange', selectTarget)
})()
