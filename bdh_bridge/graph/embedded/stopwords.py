"""Words that carry no subject, in the languages in which people are likely to write.

Short on purpose: the vectors carry the meaning, and a word missing here only costs a posting.
"""

from __future__ import annotations

_ENGLISH = """
a an and are as at be been being but by can could did do does for from had has have he her him
his how i if in into is it its me my no not of on or our she should so than that the their them
then there these they this those to too us was we were what when where which who why will with
would you your
"""
_ITALIAN = """
abbiamo ad agli ai al alla alle allo anche avere che chi ci coi col come con così cosa cui da
dagli dai dal dalla dalle degli dei del della delle dello di dove due ed era essere fra gli ha
hai hanno ho il in io la le lei lo loro lui ma mi mia mio ne negli nei nel nella nelle noi non
nostra nostro per perché però più quale quando quella quello questa questo qui se sei si sia
siamo sono su sua sul sulla suo te tra tu tua tuo un una uno vi voi è
"""
_SPANISH = """
al como con cual cuando de del desde donde el ella ellos en entre era es esa ese eso esta este
esto está fue ha han hay la las lo los más me mi muy nos nosotros para pero por porque que qué
quien se ser si sin sobre son su sus también te tu un una unas unos ya yo él
"""
_FRENCH = """
au aux avec ce ces cette comme dans de des du elle elles en est et eux il ils je la le les leur
lui mais me mes moi mon même ne nos notre nous on ont ou où par pas plus pour pourquoi quand que
quel quelle qui sa sans se ses si son sont sur ta te tes toi ton tu un une vos votre vous été
être
"""
_GERMAN = """
aber als am an auch auf aus bei bin bis das dass dem den der des die du ein eine einem einen
einer er es für hat haben hatte ich ihm ihn ihr im in ist ja kann mein mich mir mit nach nicht
noch nur oder sich sie sind so um und uns unser vom von vor war warum was wenn wer wie wir wird
wo zu zum zur über
"""
_PORTUGUESE = """
ao aos as com como da das de do dos ela elas ele eles em entre era essa esse esta este eu foi
isso já mais mas me meu minha muito na nas no nos não nós o onde os ou para pela pelo por porque
qual quando que quem se sem ser seu sua são também te tem um uma você é à
"""

STOP_WORDS = frozenset(
    " ".join((_ENGLISH, _ITALIAN, _SPANISH, _FRENCH, _GERMAN, _PORTUGUESE)).split()
)
