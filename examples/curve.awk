# examples/curve.awk - draw the loss of one run over several layouts, from logs of tp-train.
#
#   awk -f examples/curve.awk [-v ref=LOG -v ref_name=TEXT -v title=TEXT -v note=TEXT] LOG... > SVG
#   awk -f examples/curve.awk -v spark=60 LOG...           one line of text, 60 characters wide
#
# The steps of each layout have their own colour, and a line marks each change of layout. The log
# `ref`, of a run that kept its layout, is drawn below them as a broad grey line.

function field(name,    s) {
    if (!match($0, "\"" name "\": *(\"[^\"]*\"|[-+0-9.eE]+)"))
        return ""
    s = substr($0, RSTART, RLENGTH)
    sub(/^[^:]*: */, "", s)
    gsub(/"/, "", s)
    return s
}

function fail(sentence) {
    print "curve: " sentence > "/dev/stderr"
    failed = 1
    exit 1
}

BEGIN {
    if (ref != "") {
        while ((got = (getline < ref)) > 0)
            if (field("loss") != "") {
                ref_step[++n_ref] = field("step") + 0
                ref_loss[n_ref] = field("loss") + 0
            }
        if (got < 0)
            fail(ref ": cannot be read")
    }
}

field("loss") != "" {
    step[++n] = field("step") + 0
    loss[n] = field("loss") + 0
    layout[n] = field("layout")
}

# ---- text ------------------------------------------------------------------------------------

# Each character is the mean loss of some steps; a bar marks a change of layout.
function sparkline(    i, c, k, sum, last, out, bars) {
    split("▁ ▂ ▃ ▄ ▅ ▆ ▇ █", bars, " ")
    for (c = 0; c < spark; c++) {
        sum = k = 0
        for (i = int(c * n / spark) + 1; i <= int((c + 1) * n / spark); i++) {
            if (last != "" && layout[i] != last)
                out = out "|"
            last = layout[i]
            sum += loss[i]
            k++
        }
        if (k)
            out = out bars[1 + int(7.999 * (sum / k - lo) / (hi > lo ? hi - lo : 1))]
    }
    printf "%.2f %s %.2f\n", loss[1], out, loss[n]
}

# ---- picture ---------------------------------------------------------------------------------

function px(s) { return sprintf("%.1f", left + (s - first) / (end - first) * width) }
function py(v) { return sprintf("%.1f", top + (hi - v) / (hi - lo) * height) }

function text(x, y, size, anchor, fill, s) {
    gsub(/&/, "\\&amp;", s)
    gsub(/</, "\\&lt;", s)
    printf "<text x=\"%s\" y=\"%s\" font-size=\"%d\" text-anchor=\"%s\" fill=\"%s\">%s</text>\n",
           x, y, size, anchor, fill, s
}

# A round distance between ticks that gives about `want` of them.
function tick_distance(range, want,    d, p) {
    p = 1
    while (p * 10 <= range / want) p *= 10
    while (p > range / want) p /= 10
    d = range / want / p
    return (d <= 1 ? 1 : d <= 2 ? 2 : d <= 5 ? 5 : 10) * p
}

function axes(    d, v) {
    d = tick_distance(hi - lo, 6)
    for (v = d * int((lo + d * 0.999) / d); v <= hi; v += d) {
        printf "<path d=\"M%s %sH%s\" stroke=\"#dddddd\"/>\n", left, py(v), left + width
        text(left - 8, py(v) + 4, 12, "end", "#333333", sprintf(d < 1 ? "%.1f" : "%d", v))
    }
    d = tick_distance(end - first, 8)
    for (v = d * int((first + d * 0.999) / d); v <= end; v += d) {
        printf "<path d=\"M%s %sv5\" stroke=\"#333333\"/>\n", px(v), top + height
        text(px(v), top + height + 20, 12, "middle", "#333333", v)
    }
    printf "<path d=\"M%s %sv%sh%s\" fill=\"none\" stroke=\"#333333\"/>\n", left, top, height, width
    text(left + width / 2, top + height + 44, 14, "middle", "#111111", "training step")
    printf "<text transform=\"translate(22 %s) rotate(-90)\" font-size=\"14\" " \
           "text-anchor=\"middle\" fill=\"#111111\">loss (nats per byte)</text>\n", top + height / 2
}

# A line through the points a..b of the run, or of the reference.
function line(a, b, of_ref, style,    i) {
    printf "<polyline fill=\"none\" stroke-linejoin=\"round\" %s points=\"", style
    for (i = a; i <= b; i++)
        if (of_ref)
            printf "%s,%s ", px(ref_step[i]), py(ref_loss[i])
        else
            printf "%s,%s ", px(step[i]), py(loss[i])
    print "\"/>"
}

function legend(row, colour, broad, s,    y) {
    y = top + 14 + 22 * row
    printf "<path d=\"M%s %sh28\" stroke=\"%s\" stroke-width=\"%s\"/>\n", left + width - 262, y,
           colour, broad
    text(left + width - 226, y + 4, 13, "start", "#111111", s)
}

function layout_change(i,    x) {
    x = px((step[i - 1] + step[i]) / 2)
    printf "<path d=\"M%s %sv%s\" stroke=\"#111111\" stroke-dasharray=\"5 4\"/>\n", x, top, height
    text(x + 7, top + height * 0.3, 13, "start", "#111111",
         "tp-reshard " layout[i - 1] " → " layout[i])
}

function picture(    i, a, k, colours) {
    split("#0072b2 #d55e00 #009e73 #cc79a7", colours, " ")
    left = 64; top = 48; width = 712; height = 352
    print "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 460\" " \
          "font-family=\"Helvetica, Arial, DejaVu Sans, sans-serif\">"
    print "<rect width=\"800\" height=\"460\" fill=\"#ffffff\"/>"
    text(left, 28, 17, "start", "#111111", title)
    if (note != "")
        text(left + width, top + height + 44, 12, "end", "#555555", note)
    axes()
    if (n_ref) {
        line(1, n_ref, 1, "stroke=\"#bbbbbb\" stroke-width=\"7\" stroke-opacity=\"0.7\"")
        legend(0, "#bbbbbb", 7, ref_name)
    }
    for (i = a = 1; i <= n; i++)
        if (i == n || layout[i + 1] != layout[i]) {
            k++
            # start at the last point of the layout before, so that the line has no gap
            line(a > 1 ? a - 1 : a, i, 0,
                 "stroke=\"" colours[1 + (k - 1) % 4] "\" stroke-width=\"2\"")
            legend(n_ref ? k : k - 1, colours[1 + (k - 1) % 4], 2,
                   layout[i] ", steps " step[a] " to " step[i])
            if (a > 1)
                layout_change(a)
            a = i + 1
        }
    print "</svg>"
}

END {
    if (failed)
        exit 1
    if (n < 2 || step[n] <= step[1])
        fail("the logs have fewer than two steps")
    lo = hi = loss[1]
    first = step[1]
    end = step[n]
    for (i = 1; i <= n; i++) {
        if (loss[i] < lo) lo = loss[i]
        if (loss[i] > hi) hi = loss[i]
    }
    if (title == "")
        title = "Training loss over " first " to " end
    if (ref_name == "")
        ref_name = "the same run at one layout"
    if (spark)
        sparkline()
    else {
        margin = hi > lo ? (hi - lo) * 0.04 : hi != 0 ? 0.04 * (hi < 0 ? -hi : hi) : 1
        lo -= margin
        hi += margin
        picture()
    }
}
